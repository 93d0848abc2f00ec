// SPDX-License-Identifier: Apache-2.0
//
// receive_frames: receives frames from one TCP connection, until it ends. A frame is the length of its body, 8 bytes in
// network order, and the body. The length goes to the host; the body stays where the NIC put it. The program hashes the
// bodies and prints their SHA-256.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <gpurx/gpurx.hpp>
#include <optional>
#include <string>

#include "common_options.hpp"
#include "sink.hpp"

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr auto as_result = asio::as_tuple(asio::use_awaitable);

void check(gpurx::error_code error, gpurx::receiver const& rx)
{
    if (error)
        throw gpurx::system_error{error, rx.why()};
}

struct options {
    endpoint_name endpoint;
    session_choice nic;
};

struct totals {
    std::uint64_t frames = 0;
    std::uint64_t loans = 0;
};

// The length of the next body; nothing at the end of the stream, which is between two frames.
asio::awaitable<std::optional<std::uint64_t>> read_length(gpurx::receiver& rx)
{
    std::array<unsigned char, 8> field{};
    auto const [error, bytes] = co_await gpurx::async_read(rx, gpurx::host_span{field}, as_result);
    if (error == asio::error::eof && bytes == 0)
        co_return std::nullopt;
    check(error, rx);
    std::uint64_t length = 0;
    for (auto const byte : field)
        length = length << 8 | byte;
    co_return length;
}

void consume(gpurx::rx_buffer loan, sink& out)
{
    loan.acquire();
    out.write(loan.fragments());  // a program of yours gives them to the GPU, and calls loan.release_after(stream)
}

// A body that is longer than the session lends comes in several loans. None of them has a byte of the next frame.
asio::awaitable<std::uint64_t> receive_in_parts(gpurx::receiver& rx, std::uint64_t length, sink& out)
{
    std::uint64_t loans = 0;
    for (; length > 0; ++loans) {
        auto [error, loan] = co_await rx.async_receive(length, as_result);
        check(error, rx);
        length -= loan.size();
        consume(std::move(loan), out);
    }
    co_return loans;
}

// One loan of exactly the body. The length is the peer's: nothing is allocated for it, so any is harmless.
asio::awaitable<std::uint64_t> receive_body(gpurx::receiver& rx, std::uint64_t length, sink& out)
{
    auto [error, loan] = co_await rx.async_receive_exactly(length, as_result);
    if (error == gpurx::errc::beyond_loan_limit)
        co_return co_await receive_in_parts(rx, length, out);
    check(error, rx);
    auto const loans = loan.empty() ? 0U : 1U;
    consume(std::move(loan), out);
    co_return loans;
}

asio::awaitable<totals> receive(gpurx::rx_session& session, tcp::endpoint const& here, sink& out)
{
    gpurx::acceptor acceptor{co_await asio::this_coro::executor, session, here};
    fmt::print(stderr, "listening on port {}, transport {}\n", acceptor.local_endpoint().port(),
               to_string(session.transport()));
    auto rx = co_await acceptor.async_accept();
    totals sum;
    while (auto const length = co_await read_length(rx)) {
        sum.loans += co_await receive_body(rx, *length, out);
        ++sum.frames;
    }
    co_return sum;
}

int run(options const& wanted, gpurx::rx_session& session)
{
    asio::io_context context{1};
    tcp::resolver resolver{context};
    auto const here = resolver.resolve(wanted.endpoint.host, wanted.endpoint.port).begin()->endpoint();
    sink out{{}};
    std::exception_ptr failure;
    asio::co_spawn(context, receive(session, here, out), [&](std::exception_ptr thrown, totals sum) {
        failure = std::move(thrown);
        if (!failure)
            fmt::print("{} frames, {} bytes, {} loans\n", sum.frames, out.bytes(), sum.loans);
    });
    context.run();
    if (failure)
        std::rethrow_exception(failure);
    fmt::print("SHA-256 {}\n", out.finish());
    return 0;
}

}  // namespace

int main(int argc, char** argv)
try {
    options wanted;
    CLI::App app{"Receives frames into device memory: their lengths to the host, their bodies without a copy."};
    app.set_version_flag("--version", "receive_frames " GPURX_VERSION, "Print the version");
    app.add_option_function<std::string>(
           "--listen", [&](std::string const& text) { wanted.endpoint = endpoint_argument(text); },
           "Accept one connection here (ADDRESS:PORT)")
        ->required();
    add_session_options(app, wanted.nic);
    wanted.nic.session.max_flows = 1;
    try {
        app.parse(argc, argv);
    } catch (CLI::ParseError const& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    auto session = open_session(wanted.nic);
    return session ? run(wanted, *session) : 4;
} catch (std::exception const& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
}
