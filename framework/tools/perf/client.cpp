// SPDX-License-Identifier: Apache-2.0
#include "client.hpp"

#include <fmt/format.h>

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cstdio>
#include <deque>
#include <exception>
#include <gpurx/error.hpp>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "async.hpp"
#include "protocol.hpp"

namespace gpurx::perf {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using clock = std::chrono::steady_clock;

constexpr std::chrono::seconds connect_timeout{30};
constexpr std::chrono::milliseconds pause{50};
// Between two rounds a server does not listen for a moment, which is worth no word.
constexpr unsigned quiet_attempts = 40;
constexpr char hung_up[] = "its output has the reason; its --max-flows may be too small";
// For how long the load goes on: the server's clock may have begun later.
constexpr std::chrono::milliseconds beyond{200};

[[noreturn]] void fail(error_code code, char const* operation, std::string object, std::string advice = {})
{
    throw system_error{
        code, {.operation = operation, .object = std::move(object), .kernel_message = {}, .advice = std::move(advice)}};
}

struct outgoing {
    outgoing(asio::any_io_executor const& executor, std::uint32_t own_number)
        : number{own_number}, socket{executor}, room{executor, clock::time_point::max()}
    {}

    std::uint32_t number;
    tcp::socket socket;
    asio::steady_timer room;                  // is cancelled when the window has some
    std::deque<clock::time_point> under_way;  // since when each message is
    std::vector<std::byte> message;
    std::uint64_t sent = 0;
    std::uint64_t acknowledged = 0;
    bool is_over = false;  // nobody answers any more
};

class sending_round {
  public:
    sending_round(client_options const& wanted, asio::any_io_executor executor, bool is_first)
        : wanted_{wanted}, executor_{std::move(executor)}, quiet_attempts_{is_first ? 0 : quiet_attempts}
    {}

    [[nodiscard]] asio::awaitable<void> run();
    [[nodiscard]] round_result take_result() { return std::move(made_); }

  private:
    [[nodiscard]] asio::awaitable<void> connect(outgoing& which, std::vector<tcp::endpoint> const& to);
    [[nodiscard]] asio::awaitable<error_code> introduce(outgoing& which);
    [[nodiscard]] asio::awaitable<void> read_greeting(outgoing& of);
    [[nodiscard]] asio::awaitable<void> write_load(outgoing& to);
    [[nodiscard]] asio::awaitable<void> read_answers(outgoing& of);
    void note(outgoing& of, std::uint64_t acknowledged);
    [[nodiscard]] std::string name_of(outgoing const& which) const;

    client_options const& wanted_;
    asio::any_io_executor executor_;
    unsigned quiet_attempts_;  // to connect, before it is said that a server is waited for
    std::list<outgoing> flows_;
    clock::time_point begin_;  // of what is measured
    clock::time_point end_;
    round_result made_;
};

asio::awaitable<void> sending_round::run()
{
    tcp::resolver resolver{executor_};
    auto const [unknown, found] = co_await resolver.async_resolve(wanted_.host, wanted_.port, deferred_tuple);
    if (unknown)
        fail(unknown, "resolve", wanted_.host);
    std::vector<tcp::endpoint> endpoints;
    for (auto const& each : found)
        endpoints.push_back(each.endpoint());
    for (std::uint32_t number = 0; number < wanted_.flows; ++number)
        co_await connect(flows_.emplace_back(executor_, number), endpoints);
    for (auto& each : flows_)
        co_await read_greeting(each);
    begin_ = clock::now() + wanted_.warm_up;
    end_ = begin_ + wanted_.measured;
    using operation = decltype(asio::co_spawn(executor_, write_load(flows_.front()), asio::deferred));
    std::vector<operation> operations;
    for (auto& each : flows_) {
        operations.push_back(asio::co_spawn(executor_, write_load(each), asio::deferred));
        operations.push_back(asio::co_spawn(executor_, read_answers(each), asio::deferred));
    }
    co_await await_all(std::move(operations));
}

// Between two rounds nobody listens; in one somebody does until all flows are there.
asio::awaitable<void> sending_round::connect(outgoing& which, std::vector<tcp::endpoint> const& to)
{
    asio::steady_timer timer{executor_};
    auto const until = clock::now() + connect_timeout;
    for (unsigned attempt = 0;; ++attempt) {
        auto const [refused, peer] = co_await asio::async_connect(which.socket, to, deferred_tuple);
        auto const code = refused ? refused : co_await introduce(which);
        if (!code)
            co_return;
        if (which.number > 0)
            fail(code, "connect to", name_of(which), hung_up);
        if (clock::now() > until)
            fail(code, "connect to", name_of(which),
                 fmt::format("no server listened there for {} s: start `gpurx-perf server` on that machine",
                             connect_timeout.count()));
        if (attempt == quiet_attempts_)
            fmt::print(stderr, "gpurx-perf: waiting up to {2} s for `gpurx-perf server` at {0} port {1}: {3}\n",
                       wanted_.host, wanted_.port, connect_timeout.count(), code.message());
        which.socket.close();
        timer.expires_after(pause);
        auto const [stopped] = co_await timer.async_wait(deferred_tuple);
        if (stopped)
            fail(stopped, "connect to", name_of(which));
    }
}

asio::awaitable<error_code> sending_round::introduce(outgoing& which)
{
    error_code code;
    which.socket.set_option(tcp::no_delay{true}, code);
    auto const text = encode(request{.flow = which.number,
                                     .flows = wanted_.flows,
                                     .message_size = wanted_.message_size,
                                     .warm_up_ms = static_cast<std::uint32_t>(wanted_.warm_up.count()),
                                     .measured_ms = static_cast<std::uint32_t>(wanted_.measured.count())});
    auto const [failed, size] = co_await asio::async_write(which.socket, asio::buffer(text), deferred_tuple);
    co_return failed;
}

asio::awaitable<void> sending_round::read_greeting(outgoing& of)
{
    std::array<std::byte, greeting_size> text{};
    auto const [code, size] = co_await asio::async_read(of.socket, asio::buffer(text), deferred_tuple);
    if (code)
        fail(code, "read the greeting of", name_of(of), hung_up);
    made_.server = decode_greeting(text);
}

asio::awaitable<void> sending_round::write_load(outgoing& to)
{
    to.message.resize(wanted_.message_size);
    while (clock::now() < end_ + beyond && !to.is_over) {
        if (to.sent - to.acknowledged >= wanted_.window) {
            co_await to.room.async_wait(deferred_tuple);
            continue;
        }
        fill_pattern(to.message, to.number, to.sent * wanted_.message_size);
        to.under_way.push_back(clock::now());
        ++to.sent;
        auto const [code, size] = co_await asio::async_write(to.socket, asio::buffer(to.message), deferred_tuple);
        if (code)
            fail(code, "send to", name_of(to));
    }
    error_code ignored;
    to.socket.shutdown(tcp::socket::shutdown_send, ignored);
}

asio::awaitable<void> sending_round::read_answers(outgoing& of)
{
    std::array<std::byte, 8> text{};
    for (;;) {
        auto const [code, size] = co_await asio::async_read(of.socket, asio::buffer(text), deferred_tuple);
        if (code)
            fail(code, "read acknowledgements of", name_of(of), hung_up);
        auto const acknowledged = decode_acknowledged(text);
        if (acknowledged == end_of_load)
            break;
        note(of, acknowledged);
    }
    of.is_over = true;
    of.room.cancel();
    if (of.number != 0)
        co_return;
    std::array<std::byte, result_size> all{};
    auto const [code, size] = co_await asio::async_read(of.socket, asio::buffer(all), deferred_tuple);
    if (code)
        fail(code, "read the result of", name_of(of));
    made_.received = decode_result(all);
}

void sending_round::note(outgoing& of, std::uint64_t acknowledged)
{
    auto const now = clock::now();
    for (; of.acknowledged < acknowledged && !of.under_way.empty(); ++of.acknowledged) {
        if (of.under_way.front() >= begin_ && now <= end_)
            made_.latency.add(now - of.under_way.front());
        of.under_way.pop_front();
    }
    of.room.cancel();
}

std::string sending_round::name_of(outgoing const& which) const
{
    return fmt::format("{} port {} (flow {})", wanted_.host, wanted_.port, which.number);
}

}  // namespace

void send(client_options const& wanted, std::function<void(round_result const&)> const& done)
{
    for (unsigned number = 0; number < wanted.rounds; ++number) {
        asio::io_context context{1};
        sending_round one{wanted, context.get_executor(), number == 0};
        std::exception_ptr failure;
        asio::co_spawn(context, one.run(), [&failure](std::exception_ptr failed) { failure = failed; });
        context.run();
        if (failure)
            std::rethrow_exception(failure);
        done(one.take_result());
    }
}

}  // namespace gpurx::perf
