// SPDX-License-Identifier: Apache-2.0
//
// A program on gpurx::receiver (ON_GPURX), or on tcp::socket. tests/bench/including.py compiles it. PART chooses:
//   0: an empty main with the header   1: reads with async_read   2: serves requests with Beast
#ifdef ON_GPURX
#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>
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
    while (bytes[0] != std::byte{1})
        total += co_await asio::async_read(from, asio::buffer(bytes), asio::use_awaitable);
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
