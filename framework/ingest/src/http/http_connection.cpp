// SPDX-License-Identifier: Apache-2.0
#include "http_connection.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest::detail {

namespace {

constexpr auto tuple = asio::as_tuple(asio::use_awaitable);

// What is copied to the host at a time: an ordinary header, whole.
constexpr std::size_t header_step = 1024;

[[noreturn]] void fail(error_code code, std::string advice = {})
{
    throw system_error{code, {.operation = {}, .object = {}, .kernel_message = {}, .advice = std::move(advice)}};
}

// A second request must not wait for the acknowledgement of the first.
void send_at_once(receiver const& on)
{
    int const yes = 1;
    static_cast<void>(::setsockopt(on.native_handle(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes));
}

device_span on_host(std::byte* bytes, std::size_t size)
{
    return {memory_kind::host, reinterpret_cast<std::uintptr_t>(bytes), size};
}

}  // namespace

http_connection::http_connection(asio::any_io_executor const& executor, rx_session& session,
                                 std::chrono::milliseconds timeout, cuda_stream_ref stream)
    : receiver_{executor, session}, stream_{stream}, silence_{executor}, timeout_{timeout}
{}

asio::awaitable<void> http_connection::async_connect(std::vector<asio::ip::tcp::endpoint> const& to)
{
    watch();
    error_code last = asio::error::host_not_found;
    for (auto const& endpoint : to) {
        auto const [code] = co_await receiver_.async_connect(endpoint, tuple);
        last = code;
        if (!code || code == asio::error::operation_aborted)
            break;
    }
    check(last);
    send_at_once(receiver_);
}

asio::awaitable<void> http_connection::async_send(std::string request)
{
    auto const [code, sent] = co_await asio::async_write(receiver_, asio::buffer(request), tuple);
    check(code);
}

asio::awaitable<answer> http_connection::async_answer()
{
    std::string text;
    for (;;) {
        while (pending_size() == 0)
            co_await async_more();
        auto const before = text.size();
        auto const step = std::min(pending_size(), header_step);
        text.resize(before + step);
        error_code code;
        gather(pending(step), on_host(reinterpret_cast<std::byte*>(text.data()) + before, step), stream_, code);
        check(code);
        auto const size = header_size(text);
        use(size == 0 ? step : size - before);
        if (size == 0 && text.size() < header_limit)
            continue;
        std::string why = "its header is longer than 16 KiB";
        auto found = size == 0 ? answer{} : parse_answer(std::string_view{text}.substr(0, size), code, why);
        if (size == 0 || code)
            fail(errc::bad_response, std::move(why));
        if (found.status >= 200)
            co_return found;
        text.clear();
    }
}

asio::awaitable<http_connection::transferred> http_connection::async_body(device_span to)
{
    error_code code;
    auto const placed = place_pending(to, code);
    if (code || placed == to.size())
        co_return transferred{code, placed};
    auto const [failed, read] = co_await async_read(receiver_, to.subspan(placed, to.size() - placed), stream_, tuple);
    co_return transferred{failed, placed + read};
}

asio::awaitable<http_connection::transferred> http_connection::async_body(host_span to)
{
    error_code code;
    auto const placed = place_pending(on_host(to.data(), to.size()), code);
    if (code || placed == to.size())
        co_return transferred{code, placed};
    auto const [failed, read] =
        co_await async_read(receiver_, host_span{to.data() + placed, to.size() - placed}, tuple);
    co_return transferred{failed, placed + read};
}

asio::awaitable<void> http_connection::async_skip(std::uint64_t bytes)
{
    while (bytes > 0) {
        if (pending_size() == 0)
            co_await async_more();
        auto const step = static_cast<std::size_t>(std::min<std::uint64_t>(pending_size(), bytes));
        use(step);
        bytes -= step;
    }
}

asio::awaitable<std::string> http_connection::async_excerpt(std::size_t at_most)
{
    if (pending_size() == 0)
        co_await async_more();
    std::string text(std::min(pending_size(), at_most), ' ');
    error_code code;
    gather(pending(text.size()), on_host(reinterpret_cast<std::byte*>(text.data()), text.size()), stream_, code);
    check(code);
    use(text.size());
    co_return text;
}

// Looks now and then: a timer set anew for each packet would cost more than it tells.
void http_connection::watch()
{
    silence_.expires_after(timeout_);
    silence_.async_wait([weak = weak_from_this()](error_code code) {
        auto const self = weak.lock();
        if (code || self == nullptr)
            return;
        auto const now = self->receiver_.stats().bytes();
        if (std::exchange(self->seen_, now) != now)
            return self->watch();
        self->timed_out_ = true;
        self->receiver_.close();
    });
}

void http_connection::check(error_code code) const
{
    if (code && timed_out_)
        fail(errc::gave_up, "nothing came for " + std::to_string(timeout_.count()) + " ms");
    if (code)
        fail(code);
}

asio::awaitable<void> http_connection::async_more()
{
    auto [code, loan] = co_await receiver_.async_receive(tuple);
    check(code);
    loan_ = std::move(loan);
    used_ = 0;
}

// The first bytes of what is pending, as fragments: valid until the next call.
std::span<fragment const> http_connection::pending(std::size_t at_most)
{
    pieces_.clear();
    auto skip = used_;
    for (auto const& piece : loan_.fragments()) {
        auto const skipped = std::min(skip, piece.size);
        auto const size = std::min(piece.size - skipped, at_most);
        skip -= skipped;
        at_most -= size;
        if (size > 0)
            pieces_.push_back({piece.address + skipped, size, piece.kind});
    }
    return pieces_;
}

std::size_t http_connection::place_pending(device_span to, error_code& code)
{
    auto const size = std::min(pending_size(), to.size());
    if (size == 0)
        return 0;
    auto const placed = gather(pending(size), to.first(size), stream_, code);
    use(placed);
    return placed;
}

void http_connection::use(std::size_t bytes)
{
    used_ += bytes;
    if (used_ < loan_.size())
        return;
    // A gather may still be reading.
    loan_.release_after(stream_);
    loan_ = {};
    used_ = 0;
}

}  // namespace gpurx::ingest::detail
