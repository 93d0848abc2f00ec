// SPDX-License-Identifier: Apache-2.0
//
// What a test of the data plane stands on: a session over memory of its own, flows over loopback, and a sender of a
// known pattern at the other end. Transports devmem and zcrx run against the fake kernel.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gpurx/receiver.hpp>
#include <gpurx/session.hpp>

#include "base/zcrx_queue.hpp"
#include "completion.hpp"
#include "fake_kernel.hpp"
#include "fake_nic.hpp"
#include "memory/memory_state.hpp"
#include "session/session_state.hpp"
#include "test_pattern.hpp"

namespace gpurx::test {

using asio::ip::tcp;
using namespace std::chrono_literals;

[[nodiscard]] inline std::span<std::byte const> bytes_of(fragment const& piece)
{
    return {reinterpret_cast<std::byte const*>(piece.address), piece.size};
}

[[nodiscard]] inline bool is_pattern(rx_buffer const& buffer, std::size_t offset)
{
    for (auto const& piece : buffer.fragments()) {
        if (!is_pattern(bytes_of(piece), offset))
            return false;
        offset += piece.size;
    }
    return true;
}

[[nodiscard]] inline bool lies_in(fragment const& piece, detail::session_state const& session)
{
    auto const memory = session.memory().span();
    return piece.address >= memory.address() && piece.address + piece.size <= memory.address() + memory.size();
}

// Bytes.
[[nodiscard]] inline std::size_t pages(std::size_t count)
{
    return count * fake_kernel::page_size;
}

// What a session receives into.
struct session_memory {
    std::shared_ptr<detail::memory_state> state;
    std::span<std::byte> seen_by_nic;  // the bytes, for the fake kernel to write

    static session_memory on_host(std::size_t bytes)
    {
        auto state = detail::make_host_memory(bytes);
        auto const span = state->span();
        return {std::move(state), {reinterpret_cast<std::byte*>(span.address()), span.size()}};
    }
};

// A session of the transport, with its memory bound to the fake kernel's NIC where the NIC writes into it.
class test_session {
  public:
    static constexpr std::uint32_t first_id = 7;
    static constexpr std::uint32_t next_part = 100;

    test_session(transport kind, fake_kernel& kernel, rx_session_options options = {}, std::size_t bytes = pages(2048),
                 std::uint32_t dmabuf_id = first_id)
        : test_session{kind, kernel, std::move(options), session_memory::on_host(bytes), dmabuf_id}
    {}
    test_session(transport kind, fake_kernel& kernel, rx_session_options options, session_memory memory,
                 std::uint32_t dmabuf_id = first_id)
        : nic_{std::make_shared<nic_log>()},
          handle_{detail::session_access::handle(make(kind, kernel, std::move(options), std::move(memory), dmabuf_id))},
          state_{detail::session_access::state(*handle_)}
    {}

    [[nodiscard]] rx_session& operator*() { return *handle_; }
    [[nodiscard]] detail::session_state& state() const { return *state_.lock(); }
    // What the session asked of its NIC, transport devmem.
    [[nodiscard]] nic_log& nic() const { return *nic_; }
    // Returns when the NIC has been asked all that it was to be asked so far.
    void settle_nic() const
    {
        auto const worker = state_.lock()->worker();
        // Twice: a rule that nobody wanted any more when it was made is removed by a job behind the first of these.
        for (int i = 0; worker != nullptr && i < 2; ++i)
            worker->run([] {});
    }
    [[nodiscard]] bool ended() const { return state_.expired(); }
    void drop() { handle_.reset(); }

  private:
    std::shared_ptr<detail::session_state> make(transport kind, fake_kernel& kernel, rx_session_options options,
                                                session_memory memory, std::uint32_t dmabuf_id) const
    {
        options.max_flows = options.max_flows == 16 ? 4 : options.max_flows;
        options.lock_up_limit = options.lock_up_limit == 5000ms ? 0ms : options.lock_up_limit;
        std::unique_ptr<detail::session_nic> nic;
        if (kind == transport::devmem) {
            kernel.bind(dmabuf_id, memory.seen_by_nic);
            nic = std::make_unique<fake_nic>(nic_, dmabuf_id, fake_kernel::page_size, kernel.has_array_tokens());
        } else if (kind == transport::zcrx) {
            nic = std::make_unique<fake_nic>(nic_, queues_of(kernel, options.rx_queues, memory.seen_by_nic, dmabuf_id),
                                             fake_kernel::page_size);
        }
        return detail::session_state::create(std::move(options), std::move(memory.state), std::move(nic), "test");
    }

    // Each with an equal part of the memory; the dmabufs are dmabuf_id, dmabuf_id + next_part, ...
    static std::vector<std::shared_ptr<detail::zcrx_queue>> queues_of(fake_kernel& kernel, unsigned count,
                                                                      std::span<std::byte> memory,
                                                                      std::uint32_t dmabuf_id)
    {
        std::vector<std::shared_ptr<detail::zcrx_queue>> queues;
        auto const size = memory.size() / count;
        for (unsigned i = 0; i < count; ++i) {
            auto const id = dmabuf_id + i * next_part;
            kernel.bind(id, memory.subspan(i * size, size));
            queues.push_back(detail::zcrx_queue::open(
                {.interface = "fake0",
                 .ifindex = 1,
                 .queue = id,
                 .memory = {.dmabuf_fd = static_cast<int>(id), .offset = i * size, .size = size}}));
            kernel.watch(queues.back());
        }
        return queues;
    }

    std::shared_ptr<nic_log> nic_;
    std::optional<rx_session> handle_;
    std::weak_ptr<detail::session_state> state_;
};

// The other end of a flow: blocking, on the test's thread.
class sender {
  public:
    explicit sender(asio::io_context& io) : socket_{io} {}

    [[nodiscard]] tcp::socket& socket() { return socket_; }
    // The next bytes of the pattern.
    void send(std::size_t size)
    {
        asio::write(socket_, asio::buffer(pattern(sent_, size)));
        sent_ += size;
    }
    // End of stream.
    void finish() { socket_.shutdown(tcp::socket::shutdown_send); }
    void reset()
    {
        socket_.set_option(asio::socket_base::linger{true, 0});
        socket_.close();
    }
    [[nodiscard]] std::size_t sent() const { return sent_; }

  private:
    tcp::socket socket_;
    std::size_t sent_ = 0;
};

// With transport devmem a test that makes one runs twice: on a kernel without array tokens, and on one with them.
class world {
  public:
    explicit world(transport kind, rx_session_options options = {}, std::size_t bytes = pages(2048))
        : world{kind, std::move(options), session_memory::on_host(bytes)}
    {}
    world(transport kind, rx_session_options options, session_memory memory)
        : session{kind, with_tokens(kernel, kind), std::move(options), std::move(memory)}
    {}
    ~world()
    {
        // What is still pending goes before the kernel looks for tokens.
        io.reset();
    }

    fake_kernel kernel;
    test_session session;
    std::optional<asio::io_context> io{std::in_place, 1};
    asio::io_context wires{1};  // sockets that must not depend on `io`
    tcp::acceptor acceptor{wires, {asio::ip::address_v4::loopback(), 0}};

    // A flow that is connected to `to`.
    [[nodiscard]] receiver flow(sender& to) { return flow(to, io->get_executor()); }
    [[nodiscard]] receiver flow(sender& to, asio::any_io_executor executor)
    {
        return {std::move(executor), *session, connection(to)};
    }
    [[nodiscard]] tcp::socket connection(sender& to)
    {
        to.socket().connect(acceptor.local_endpoint());
        to.socket().set_option(tcp::no_delay{true});
        return acceptor.accept();
    }
    // Runs handlers until nothing is left that could run now.
    std::size_t settle()
    {
        io->restart();
        std::size_t count = 0;
        // Loopback delivers within the sending call, so what is there is there; a reactor may need a second look.
        for (int idle = 0; idle < 2;) {
            auto const ran = io->poll();
            count += ran;
            idle = ran == 0 ? idle + 1 : 0;
        }
        return count;
    }
    // Runs handlers until `ready`; fails the test after some seconds.
    template <class Ready>
    void run_until(Ready ready)
    {
        auto const deadline = std::chrono::steady_clock::now() + 50s;  // a machine may be slow
        io->restart();
        while (!ready()) {
            if (io->run_one_until(deadline) == 0 && !ready()) {
                REQUIRE(std::chrono::steady_clock::now() < deadline);
                REQUIRE_FALSE(io->stopped());  // nothing pending, and not ready
            }
        }
    }

  private:
    static fake_kernel& with_tokens(fake_kernel& kernel, transport kind)
    {
        if (kind == transport::devmem)
            kernel.set_array_tokens(GENERATE(false, true));
        return kernel;
    }
};

// For tests that hold for each.
inline transport any_transport()
{
    return GENERATE(transport::copy, transport::devmem, transport::zcrx);
}

// For tests of what the NIC writes.
inline transport nic_transport()
{
    return GENERATE(transport::devmem, transport::zcrx);
}

// A port that nobody listens on.
inline tcp::endpoint nobody_there(world& in)
{
    tcp::acceptor gone{in.wires, {asio::ip::address_v4::loopback(), 0}};
    return gone.local_endpoint();
}

// Runs until there is a loan, or why there is none.
inline completion_ptr receive(world& in, receiver& rx)
{
    auto result = make_completion();
    rx.async_receive(noting{result});
    in.run_until([&] { return result->done(); });
    return result;
}

}  // namespace gpurx::test
