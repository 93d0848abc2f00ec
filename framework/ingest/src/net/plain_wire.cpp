// SPDX-License-Identifier: Apache-2.0
#include "plain_wire.hpp"

#include <poll.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace gpurx::ingest::detail {

namespace {

constexpr auto tuple = asio::as_tuple(asio::use_awaitable);

}  // namespace

asio::awaitable<error_code> plain_wire::async_connect(std::vector<asio::ip::tcp::endpoint> const& to)
{
    auto const [code, peer] = co_await receiver_.async_connect(to, tuple);
    // A second request must not wait for the acknowledgement of the first.
    error_code ignored;
    if (!code)
        receiver_.set_option(asio::ip::tcp::no_delay{true}, ignored);
    co_return code;
}

asio::awaitable<wire::transferred> plain_wire::async_write(asio::const_buffer from)
{
    // Not use_awaitable: it would be a coroutine of its own, in which clang-tidy 14 gets lost.
    auto const [code, sent] = co_await asio::async_write(receiver_, from, asio::as_tuple(asio::deferred));
    co_return transferred{code, sent};
}

asio::awaitable<wire::transferred> plain_wire::async_read(memory_span to, cuda_stream_ref stream)
{
    return gpurx::async_read(receiver_, to, stream, tuple);
}

asio::awaitable<wire::transferred> plain_wire::async_read_some(asio::mutable_buffer to)
{
    return receiver_.async_read_some(to, tuple);
}

asio::awaitable<wire::transferred> plain_wire::async_skip(std::uint64_t bytes)
{
    return gpurx::async_read(receiver_, destination::nowhere(bytes), tuple);
}

std::uint64_t plain_wire::arrived() const noexcept
{
    return receiver_.stats().bytes();
}

bool plain_wire::at_hand() noexcept
{
    error_code ignored;
    return receiver_.available(ignored) > 0;
}

bool plain_wire::is_quiet()
{
    pollfd waiting{.fd = receiver_.native_handle(), .events = POLLIN | POLLRDHUP, .revents = 0};
    return ::poll(&waiting, 1, 0) == 0;
}

void plain_wire::close() noexcept
{
    receiver_.close();
}

}  // namespace gpurx::ingest::detail
