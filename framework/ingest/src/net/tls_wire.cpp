// SPDX-License-Identifier: Apache-2.0
#include "tls_wire.hpp"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/ingest/error.hpp>

#include "answer.hpp"
#include "private_socket.hpp"

namespace gpurx::ingest::detail {

namespace {

// Not use_awaitable: operations would be coroutines of their own, in which clang-tidy 14 gets lost.
constexpr auto direct = asio::as_tuple(asio::deferred);
// Stays in a core's own cache between decryption and copy.
constexpr std::size_t staging_size = std::size_t{256} << 10;
// After so many bytes others of the executor have a turn: a fast server would keep its thread for ever.
constexpr std::size_t turn = std::size_t{1} << 20;

}  // namespace

asio::awaitable<error_code> tls_wire::async_connect(std::vector<asio::ip::tcp::endpoint> const& to)
{
    if (auto const refused = co_await async_connect_private(socket_, to))
        co_return refused;
    error_code code;
    socket_.set_option(asio::ip::tcp::no_delay{true}, code);
    if (!tunnel_.empty())
        code = co_await dig();
    if (!code)
        socket_.native_non_blocking(true, code);
    if (code)
        co_return code;
    session_.emplace(context_, host_, socket_.native_handle());
    for (;;) {
        auto const step = session_->handshake();
        if (step.code || step.what == tls_session::waits_for::nothing)
            co_return step.code;
        if ((code = co_await wait_for(step)))
            co_return code;
    }
}

// The server says nothing before it is spoken to, so what comes is the proxy's answer.
asio::awaitable<error_code> tls_wire::dig()
{
    auto const [broken, sent] = co_await asio::async_write(socket_, asio::buffer(tunnel_), direct);
    if (broken)
        co_return broken;
    std::string text;
    auto [code, size] =
        co_await asio::async_read_until(socket_, asio::dynamic_buffer(text, header_limit), "\r\n\r\n", direct);
    if (code == asio::error::not_found)
        code = errc::bad_response;
    if (code)
        co_return code;
    auto const head = parse_answer(text.substr(0, size), code, refusal_);
    if (code || (head.status >= 200 && head.status < 300))
        co_return code;
    refusal_ = status_text(head);
    co_return errc::http_status;
}

asio::awaitable<wire::transferred> tls_wire::async_write(asio::const_buffer from)
{
    std::size_t sent = 0;
    error_code code;
    while (!code && sent < from.size()) {
        auto const step = session_->write(from + sent);
        sent += step.bytes;
        code = co_await wait_for(step);
    }
    co_return transferred{code, sent};
}

asio::awaitable<wire::transferred> tls_wire::async_read(memory_span to, cuda_stream_ref stream)
{
    if (to.kind() == memory_kind::host)
        co_return co_await read({reinterpret_cast<std::byte*>(to.address()), to.size()});
    staging_.resize(staging_size);
    std::size_t placed = 0;
    error_code code;
    while (!code && placed < to.size()) {
        auto const [failed, size] = co_await read({staging_.data(), std::min(staging_size, to.size() - placed)});
        code = failed;
        if (size == 0)
            break;
        // Ordinary memory: it has been read when this returns, and the way to the GPU is the stream's.
        fragment const piece{reinterpret_cast<std::uintptr_t>(staging_.data()), size, memory_kind::host};
        error_code not_copied;
        placed += gather({&piece, 1}, to.subspan(placed, size), stream, not_copied);
        if (not_copied)
            code = not_copied;
    }
    co_return transferred{code, placed};
}

asio::awaitable<wire::transferred> tls_wire::async_skip(std::uint64_t bytes)
{
    staging_.resize(staging_size);
    std::uint64_t skipped = 0;
    error_code code;
    while (!code && skipped < bytes) {
        auto const size = static_cast<std::size_t>(std::min<std::uint64_t>(staging_size, bytes - skipped));
        auto const [failed, read_now] = co_await read({staging_.data(), size});
        skipped += read_now;
        code = failed;
    }
    co_return transferred{code, skipped};
}

asio::awaitable<wire::transferred> tls_wire::async_read_some(asio::mutable_buffer to)
{
    for (;;) {
        auto const step = session_->read(to);
        auto const code = co_await wait_for(step);
        if (code || step.bytes > 0)
            co_return transferred{code, step.bytes};
    }
}

asio::awaitable<wire::transferred> tls_wire::read(host_span to)
{
    std::size_t placed = 0;
    std::size_t turn_ends = turn;
    error_code code;
    while (!code && placed < to.size()) {
        auto const step = session_->read({to.data() + placed, to.size() - placed});
        placed += step.bytes;
        code = step.code;
        if (step.what != tls_session::waits_for::nothing) {
            code = co_await wait_for(step);
        } else if (!code && placed >= turn_ends) {
            turn_ends += turn;
            co_await asio::post(socket_.get_executor(), asio::use_awaitable);
            if (!socket_.is_open())
                code = asio::error::operation_aborted;
        }
    }
    co_return transferred{code, placed};
}

asio::awaitable<error_code> tls_wire::wait_for(tls_session::step of)
{
    if (of.what == tls_session::waits_for::nothing)
        co_return of.code;
    auto const what =
        of.what == tls_session::waits_for::bytes ? asio::ip::tcp::socket::wait_read : asio::ip::tcp::socket::wait_write;
    auto const [code] = co_await socket_.async_wait(what, direct);
    // The descriptor may be another's by now.
    co_return socket_.is_open() ? code : error_code{asio::error::operation_aborted};
}

std::uint64_t tls_wire::arrived() const noexcept
{
    return session_ ? session_->arrived() : 0;
}

bool tls_wire::at_hand() noexcept
{
    error_code code;
    return socket_.available(code) > 0 && !code;
}

// What TLS sends for itself, as tickets, is read and is no byte.
bool tls_wire::is_quiet()
{
    std::byte unasked{};
    return session_ && session_->read({&unasked, 1}).what == tls_session::waits_for::bytes;
}

std::string tls_wire::why() const
{
    return session_ ? session_->why() : refusal_;
}

void tls_wire::close() noexcept
{
    error_code ignored;
    socket_.close(ignored);
}

}  // namespace gpurx::ingest::detail
