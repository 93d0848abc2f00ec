// SPDX-License-Identifier: Apache-2.0
//
// What a user's first program would do: receive some bytes through the installed library. Transport copy runs anywhere.
#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <cstdio>
#include <exception>
#include <gpurx/gpurx.hpp>
#include <numeric>

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

namespace {

asio::awaitable<void> send(tcp::endpoint to, std::array<unsigned char, 4096> const& bytes)
{
    tcp::socket socket{co_await asio::this_coro::executor};
    co_await socket.async_connect(to, asio::use_awaitable);
    co_await asio::async_write(socket, asio::buffer(bytes), asio::use_awaitable);
}

asio::awaitable<void> receive(gpurx::rx_session& session, tcp::acceptor& acceptor,
                              std::array<unsigned char, 4096>& bytes)
{
    gpurx::receiver rx{co_await asio::this_coro::executor, session,
                       co_await acceptor.async_accept(asio::use_awaitable)};
    co_await gpurx::async_read(rx, gpurx::host_span(bytes));
}

void rethrow(std::exception_ptr error)
{
    if (error)
        std::rethrow_exception(error);
}

}  // namespace

int main()
try {
    gpurx::rx_session session{{.transport = gpurx::transport::copy}, gpurx::device_memory::on_host(1U << 20U)};
    asio::io_context io;
    tcp::acceptor acceptor{io, {asio::ip::address_v4::loopback(), 0}};
    std::array<unsigned char, 4096> sent{};
    std::array<unsigned char, 4096> received{};
    std::iota(sent.begin(), sent.end(), static_cast<unsigned char>(1));

    asio::co_spawn(io, receive(session, acceptor, received), rethrow);
    asio::co_spawn(io, send(acceptor.local_endpoint(), sent), rethrow);
    io.run();

    if (sent != received) {
        std::puts("the bytes received are not the bytes sent");
        return 1;
    }
    std::printf("4096 bytes received\n%s\n", session.explain().c_str());
} catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
