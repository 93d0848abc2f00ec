// SPDX-License-Identifier: Apache-2.0
#include "download.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <gpurx/ingest/error.hpp>
#include <utility>

#include "../net/retry.hpp"

namespace gpurx::ingest::detail {

namespace {

fetch_options checked(fetch_options options)
{
    check(options);
    return options;
}

}  // namespace

download::download(asio::any_io_executor executor, rx_session& session, std::string_view text, fetch_options options)
    : executor_{executor},
      context_{.session = session, .options = checked(std::move(options))},
      from_{text, context_},
      sums_{context_.options.crc32c, context_.options.stream},
      to_{sums_},
      first_{asio::make_strand(executor), context_}
{}

asio::awaitable<void> download::async_open()
{
    if (context_.options.deadline < std::chrono::milliseconds{0})
        fail(errc::gave_up, from(), "the deadline has passed");
    if (context_.options.deadline > std::chrono::milliseconds{0})
        context_.deadline = std::chrono::steady_clock::now() + context_.options.deadline;
    co_await asio::co_spawn(first_.executor(), open(), asio::use_awaitable);
}

asio::awaitable<void> download::open()
{
    co_await from_.async_open(first_);
    sums_.announce(opened().crc32c, opened().crc64nvme);
}

// ---- the front ----

asio::awaitable<void> download::async_read_front(host_span destination)
{
    co_await asio::co_spawn(first_.executor(), read_front(destination), asio::use_awaitable);
}

asio::awaitable<void> download::read_front(host_span destination)
{
    retries attempts{first_.executor(), context_.options.attempts, context_.deadline};
    for (std::size_t placed = 0; placed < destination.size();) {
        if (front_ == opened().object.size)
            fail(asio::error::eof, from(), fmt::format("the object has {} bytes", opened().object.size));
        std::optional<passing_error> failure;
        auto const before = front_;
        try {
            co_await read_some({destination.data() + placed, destination.size() - placed});
        } catch (system_error const& error) {
            first_.drop();
            failure = from_.passing(error, first_);
        }
        placed += front_ - before;
        if (placed == destination.size() || context_.is_progress(front_ - before))
            attempts.progress();
        if (!failure)
            continue;
        ++context_.counters.retries;
        if (placed < destination.size() && !from_.has_sound())
            co_await attempts.async_pause(*failure);
    }
}

// From the answer under way, or a new one; moves the front on.
asio::awaitable<void> download::read_some(host_span destination)
{
    if (first_.on() == nullptr)
        co_await from_.async_connect(first_);
    if (first_.requests.empty()) {
        byte_range const next{front_, std::min(front_ + context_.options.chunk_size, opened().object.size)};
        pending_request front{.asked = opened().serves_ranges ? next : byte_range{}, .answer = {}, .wanted = {}};
        co_await first_.async_ask(std::move(front));
        co_await first_.async_read_header(first_.requests.front());
    }
    auto& current = first_.requests.front();
    co_await first_.on()->async_skip(front_ - current.answer.begin);
    auto const size = std::min<std::uint64_t>(destination.size(), current.answer.end - front_);
    auto const [code, placed] = co_await first_.on()->async_body(host_span{destination.data(), size});
    sums_.add_front(front_, {destination.data(), placed});
    front_ += placed;
    context_.counters.bytes += placed;
    first_.at()->bytes += placed;
    current.answer.begin = front_;
    first_.on()->check(code);
    if (!current.answer.empty())
        co_return;
    auto const brought = front_ - current.asked.begin;
    auto const is_short = !current.asked.empty() && front_ < std::min(current.asked.end, opened().object.size);
    if (current.last)
        first_.disconnect();
    first_.requests.clear();
    if (is_short && !context_.is_progress(brought))
        throw passing_error{errc::gave_up, words_for(first_.at()->from.where(),
                                                     fmt::format("it sends {} bytes of those requested", brought))};
}

// ---- the rest ----

asio::awaitable<void> download::async_fetch(std::span<placement const> placements)
{
    if (!to_.to(placements, front_, opened().object.size))
        fail(gpurx::errc::bad_destination, from(), "places overlap, begin before the front, or end beyond the object");
    co_await fetch(to_.wanted());
}

asio::awaitable<void> download::async_fetch_pieces(piece_consumer take)
try {
    to_.to(std::move(take));
    std::vector<byte_range> all{{front_, opened().object.size}};
    co_await fetch(std::move(all));
} catch (consumer_failure const& failed) {
    std::rethrow_exception(failed.why);
}

}  // namespace gpurx::ingest::detail
