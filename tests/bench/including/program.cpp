// SPDX-License-Identifier: Apache-2.0
//
// A program on gpurx::receiver (ON_GPURX), or on tcp::socket. tests/bench/including.py compiles it. PART chooses:
//   0: an empty main with the header   1: reads, each in its own way   2: serves requests with Beast
#ifdef ON_GPURX
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <gpurx/gpurx.hpp>
using stream = gpurx::receiver;
#else
#include <boost/asio.hpp>
using stream = boost::asio::ip::tcp::socket;
#endif
#if PART == 2
#include <boost/beast.hpp>
#endif

namespace asio = boost::asio;

#if PART == 1
namespace {

asio::awaitable<std::size_t> read_all(stream from)
{
    std::vector<std::byte> bytes(1 << 16);
    std::size_t total = 0;
    while (bytes[0] != std::byte{1}) {
#ifdef ON_GPURX
        total += co_await gpurx::async_read(from, gpurx::host_span{bytes});
        gpurx::rx_buffer const loan = co_await from.async_receive();
        total += loan.size();
#else
        total += co_await asio::async_read(from, asio::buffer(bytes), asio::use_awaitable);
        total += co_await from.async_read_some(asio::buffer(bytes), asio::use_awaitable);
#endif
    }
    co_return total;
}

}  // namespace

void start(asio::io_context& io, stream from)
{
    asio::co_spawn(io, read_all(std::move(from)), asio::detached);
}
#elif PART == 2
namespace {

namespace http = boost::beast::http;

asio::awaitable<void> serve(stream with)
{
    boost::beast::flat_buffer buffer;
    http::request<http::string_body> request;
    co_await http::async_read(with, buffer, request, asio::use_awaitable);
    http::response<http::string_body> response{http::status::ok, 11, request.body()};
    co_await http::async_write(with, response, asio::use_awaitable);
}

}  // namespace

void start(asio::io_context& io, stream with)
{
    asio::co_spawn(io, serve(std::move(with)), asio::detached);
}
#else
int main() {}
#endif
