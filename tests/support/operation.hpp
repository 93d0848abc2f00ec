// SPDX-License-Identifier: Apache-2.0
//
// The asynchronous operations of a receiver, so that a contract can be tested for each of them in the same words.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <ostream>
#include <utility>
#include <vector>

#include "tcp_backlog.hpp"
#include "world.hpp"

namespace gpurx::test {

enum class operation {
    connect,
    connect_each,
    receive,
    receive_at_most,
    receive_exactly,
    receive_exactly_begun,
    receive_exactly_after_read,
    read_host,
    read_device,
    read_list,
    read_some
};

inline std::ostream& operator<<(std::ostream& out, operation of)
{
    static constexpr std::array names{"async_connect",
                                      "async_connect to the first of several",
                                      "async_receive",
                                      "async_receive at most",
                                      "async_receive_exactly",
                                      "async_receive_exactly, of which some is there",
                                      "async_receive_exactly after a read",
                                      "async_read to the host",
                                      "async_read to device",
                                      "async_read to both",
                                      "async_read_some"};
    return out << names[static_cast<std::size_t>(of)];
}

[[nodiscard]] constexpr bool is_connect(operation of)
{
    return of == operation::connect || of == operation::connect_each;
}

inline constexpr std::array stream_operations{operation::receive,
                                              operation::receive_at_most,
                                              operation::receive_exactly,
                                              operation::receive_exactly_begun,
                                              operation::receive_exactly_after_read,
                                              operation::read_host,
                                              operation::read_device,
                                              operation::read_list,
                                              operation::read_some};
inline constexpr std::array all_operations{operation::connect,
                                           operation::connect_each,
                                           operation::receive,
                                           operation::receive_at_most,
                                           operation::receive_exactly,
                                           operation::receive_exactly_begun,
                                           operation::receive_exactly_after_read,
                                           operation::read_host,
                                           operation::read_device,
                                           operation::read_list,
                                           operation::read_some};

// A world with a receiver in it on which one operation can be started, to complete at once or when told.
class operation_world {
  public:
    static constexpr std::size_t size = 3000;  // of a read
    static constexpr std::size_t some = 1000;  // of those, where an operation waits for the others

    operation_world(transport kind, operation which) : operation_world{kind, which, {}} {}
    operation_world(transport kind, operation which, rx_session_options options)
        : in{kind, std::move(options)}, which_{which}
    {}

    // A receiver in the state that the operation needs. `executor`: the receiver's.
    [[nodiscard]] receiver make_receiver(asio::any_io_executor executor)
    {
        if (is_connect(which_))
            return {std::move(executor), *in.session};
        auto rx = in.flow(to, std::move(executor));
        if (which_ == operation::receive_exactly_after_read)
            read_front(rx);
        return rx;
    }
    [[nodiscard]] receiver make_receiver() { return make_receiver(in.io->get_executor()); }

    // What the operation waits for is there before it starts / comes now, with rest() bytes more.
    void make_ready()
    {
        ready_ += size + rest();
        if (!is_connect(which_))
            to.send(first() + ready_ - to.sent());
        else if (backlog_)
            backlog_->answer();
    }
    // Call it before make_receiver(). Until make_ready() nobody answers a connect, and some bytes are missing.
    void make_pending()
    {
        pending_ = true;
        if (is_connect(which_))
            backlog_.emplace(in.wires);
    }
    // Where in the pattern the operation begins.
    [[nodiscard]] std::size_t first() const
    {
        return which_ == operation::receive_exactly_after_read ? front_.size() : 0;
    }
    // Bytes that are there and that the operation leaves.
    [[nodiscard]] std::size_t rest() const
    {
        return which_ == operation::receive_at_most || which_ == operation::receive_exactly_after_read ? 500 : 0;
    }

    template <class Token>
    void start(receiver& rx, Token token)
    {
        started_ += size + rest();
        switch (which_) {
            case operation::connect:
                rx.async_connect(peer(), std::move(token));
                break;
            case operation::connect_each:
                rx.async_connect(std::array{peer(), peer()}, std::move(token));
                break;
            case operation::receive:
                rx.async_receive(std::move(token));
                break;
            case operation::receive_at_most:
                rx.async_receive(size, std::move(token));
                break;
            case operation::receive_exactly:
            case operation::receive_exactly_after_read:
                rx.async_receive_exactly(size, std::move(token));
                break;
            case operation::receive_exactly_begun:
                rx.async_receive_exactly(size, std::move(token));
                if (ready_ < started_)
                    to.send(some);
                break;
            case operation::read_host:
                async_read(rx, host_span{destination_.data(), destination_.size()}, std::move(token));
                break;
            case operation::read_device:
                async_read(rx, on_device(0), std::move(token));
                break;
            case operation::read_list:
                async_read(rx,
                           std::array<destination, 2>{host_span{destination_.data(), size / 2}, on_device(size / 2)},
                           std::move(token));
                break;
            case operation::read_some:
                rx.async_read_some(asio::buffer(destination_), std::move(token));
                break;
        }
    }

    world in;
    sender to{in.wires};

  private:
    // Leaves with the receiver what arrived with these bytes: all that the operation takes and more, or some of it.
    void read_front(receiver& rx)
    {
        to.send(front_.size() + (pending_ ? some : size + rest()));
        auto const got = make_completion();
        async_read(rx, host_span{front_}, noting{got});
        in.run_until([&] { return got->done(); });
        in.io->restart();
        REQUIRE(is_pattern(front_, 0));
    }
    [[nodiscard]] tcp::endpoint peer() const { return backlog_ ? backlog_->endpoint() : in.acceptor.local_endpoint(); }
    [[nodiscard]] memory_span on_device(std::size_t from)
    {
        return {memory_kind::host, reinterpret_cast<std::uintptr_t>(destination_.data() + from), size - from};
    }

    operation which_;
    bool pending_ = false;
    std::size_t ready_ = 0;    // bytes of which make_ready() took care
    std::size_t started_ = 0;  // bytes that started operations take or leave
    std::optional<full_backlog> backlog_;
    std::array<std::byte, 16> front_{};
    std::vector<std::byte> destination_ = std::vector<std::byte>(size);
};

}  // namespace gpurx::test
