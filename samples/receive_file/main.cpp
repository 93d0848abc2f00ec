// SPDX-License-Identifier: Apache-2.0
//
// receive_file: receives the bytes of one TCP connection into device memory, until it ends. It writes them to a file,
// or only prints their SHA-256. The two ways to consume a stream are read_all() and lend_all().
#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <gpurx/gpurx.hpp>
#include <optional>
#include <span>

#include "cli.hpp"
#include "progress.hpp"
#include "sink.hpp"

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

enum exit_status : int { received = 0, transfer_failed = 1, unexpected_bytes = 3, no_session = 4, interrupted = 130 };

void check(boost::system::error_code error, std::string operation, std::string object)
{
    if (error)
        throw gpurx::system_error{error, {std::move(operation), std::move(object), {}, {}}};
}

// Gathers the stream, piece by piece, into a range of the program's own. The NIC gets its pages back at once.
asio::awaitable<void> read_all(gpurx::receiver& rx, gpurx::memory_span landing, sink& out, progress& display)
{
    for (;;) {
        auto const [error, size] = co_await gpurx::async_read(rx, landing, asio::as_tuple(asio::use_awaitable));
        gpurx::fragment const arrived{landing.address(), size, landing.kind()};
        if (size > 0)
            out.write(std::span{&arrived, 1});
        display.update(out.bytes());
        if (error == asio::error::eof)
            co_return;
        check(error, "read", "stream");
    }
}

// Borrows the bytes where the NIC wrote them, without a copy. The NIC gets its pages back when the loan is destroyed.
asio::awaitable<void> lend_all(gpurx::receiver& rx, sink& out, progress& display)
{
    for (;;) {
        auto [error, loan] = co_await rx.async_receive(asio::as_tuple(asio::use_awaitable));
        if (error == asio::error::eof)
            co_return;
        check(error, "receive", "stream");
        loan.acquire();
        out.write(loan.fragments());
        display.update(out.bytes());
    }
}

asio::awaitable<gpurx::receiver> accept_one(gpurx::rx_session& session, tcp::endpoint const& here)
{
    gpurx::acceptor acceptor{co_await asio::this_coro::executor, session, here};
    fmt::print(stderr, "listening on port {}, transport {}\n", acceptor.local_endpoint().port(),
               to_string(session.transport()));
    co_return co_await acceptor.async_accept();
}

asio::awaitable<gpurx::receiver> connect(gpurx::rx_session& session, tcp::endpoint const& there)
{
    gpurx::receiver rx{co_await asio::this_coro::executor, session};
    auto const [error] = co_await rx.async_connect(there, asio::as_tuple(asio::use_awaitable));
    check(error, "connect to", fmt::format("{} port {}", there.address().to_string(), there.port()));
    co_return rx;
}

asio::awaitable<void> transfer(options const& wanted, gpurx::rx_session& session, gpurx::memory_span landing, sink& out,
                               progress& display)
{
    tcp::resolver resolver{co_await asio::this_coro::executor};
    auto const& [host, port] = wanted.endpoint;
    auto const [error, found] = co_await resolver.async_resolve(host, port, asio::as_tuple(asio::use_awaitable));
    check(error, "resolve", host);
    auto const endpoint = found.begin()->endpoint();
    // Not `listens ? co_await … : co_await …`: g++ 12 destroys the result of the chosen operand.
    auto opened = wanted.listens ? accept_one(session, endpoint) : connect(session, endpoint);
    auto rx = co_await std::move(opened);
    display.update(0);
    if (wanted.loans)
        co_await lend_all(rx, out, display);
    else
        co_await read_all(rx, landing, out, display);
}

exit_status run(options const& wanted, gpurx::rx_session& session)
{
    constexpr std::size_t landing_size = std::size_t{4} << 20;
    auto const landing = allocate(wanted.nic, landing_size);
    // If the reader of a pipe exits, the write reports an error.
    std::signal(SIGPIPE, SIG_IGN);
    sink out{wanted.output};
    progress display;

    asio::io_context context{1};
    asio::signal_set signals{context, SIGINT, SIGTERM};
    signals.async_wait([&](boost::system::error_code error, int) {
        if (!error)
            context.stop();
    });
    std::optional<std::exception_ptr> outcome;
    asio::co_spawn(context, transfer(wanted, session, landing.span(), out, display), [&](std::exception_ptr failure) {
        outcome = failure;
        signals.cancel();
    });
    context.run();

    auto const time = display.finish();
    if (!outcome)
        return interrupted;
    if (*outcome)
        std::rethrow_exception(*outcome);
    report const result{session.transport(), session.explain(),     session.stats(), time,
                        out.finish(),        wanted.expected_sha256};
    // The bytes may go to standard output.
    auto* const to = wanted.output == "-" ? stderr : stdout;
    wanted.json ? print_json(result, to) : print_table(result, to);
    if (result.as_expected())
        out.commit();
    else
        fmt::print(stderr, "error: the SHA-256 differs from the expected one, {}\n", wanted.expected_sha256);
    return result.as_expected() ? received : unexpected_bytes;
}

}  // namespace

int main(int argc, char** argv)
try {
    int exit_code = 0;
    auto const wanted = parse_command_line(argc, argv, exit_code);
    if (!wanted)
        return exit_code;
    auto session = open_session(wanted->nic);
    return session ? run(*wanted, *session) : no_session;
} catch (std::exception const& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return transfer_failed;
}
