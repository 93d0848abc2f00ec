// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/strand.hpp>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/ingest/error.hpp>
#include <utility>

#include "../net/retry.hpp"
#include "download.hpp"

namespace gpurx::ingest::detail {

namespace {

// To receive more than this for nothing takes longer than a new request.
constexpr std::uint64_t worth_skipping = 256 << 10;

}  // namespace

asio::awaitable<void> download::fetch(std::vector<byte_range> wanted)
{
    lane first{first_.executor(), context_};
    std::swap(first, first_);
    sums_.begin();
    plan_ = {};
    for (auto const& each : wanted)
        plan_.add(each);
    auto all = make_lanes(std::move(first));
    working_ = all.size();
    stream_fork streams{context_.options.stream, to_.on_gpus(), all.size()};
    for (std::size_t i = 0; i < all.size(); ++i)
        all[i].stream = streams[i];
    using operation = decltype(asio::co_spawn(executor_, work(all.front()), asio::deferred));
    std::vector<operation> operations;
    operations.reserve(all.size());
    for (auto& each : all)
        operations.push_back(asio::co_spawn(each.executor(), work(each), asio::deferred));
    // Of several mirrors one may be dead: nobody waits for it when nothing is left for it to bring.
    auto until = [this](std::exception_ptr const& failure) {
        auto const is_over = failure != nullptr || (from_.are_several() && is_done());
        return is_over ? asio::cancellation_type::all : asio::cancellation_type::none;
    };
    auto const ended = co_await run_together(executor_, std::move(operations), std::move(until));
    // After a failure, too: the caller may free the places in the order of its stream.
    streams.join();
    check(ended);
    keep(std::move(all));
    auto about = words_for(from(), {});
    co_await sums_.async_verify(first_.executor(), to_.on_gpu(), std::move(about), opened().object.size);
}

// A lane that was ended because nothing was left has not failed.
void download::check(outcomes const& of)
try {
    rethrow_first(of);
} catch (boost::system::system_error const& error) {
    if (error.code() != asio::error::operation_aborted || !is_done())
        throw;
}

void download::keep(std::vector<lane> all)
{
    std::erase_if(all, [](lane const& each) { return !each.is_stale(); });
    kept_ = std::move(all);
}

std::vector<lane> download::make_lanes(lane first)
{
    auto all = std::exchange(kept_, {});
    if (all.empty() || first.on() != nullptr)
        all.insert(all.begin(), std::move(first));
    if (auto& opened = all.front().requests; !opened.empty())
        opened.front().wanted = plan_.take_within(opened.front().answer);
    under_way_ = all.front().requests.size();
    auto const chunks = (plan_.size() + context_.options.chunk_size - 1) / context_.options.chunk_size;
    auto const count = opened().serves_ranges ? std::min<std::uint64_t>(context_.options.flows, chunks + 1) : 1;
    while (all.size() < count)
        all.emplace_back(asio::make_strand(executor_), context_);
    if (all.size() > count)
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(count), all.end());
    return all;
}

asio::awaitable<void> download::work(lane& of)
{
    retries attempts{of.executor(), context_.options.attempts, context_.deadline};
    of.wake();
    while (!may_end(of, false)) {
        std::optional<passing_error> failure;
        auto const before = of.brought;
        try {
            if (of.on() == nullptr)
                co_await from_.async_connect(of);
            if (!co_await converse(of) && !context_.is_progress(of.brought - before))
                failure.emplace(errc::gave_up,
                                words_for(of.at()->from.where(),
                                          fmt::format("it sends {} bytes of those requested", of.brought - before)));
        } catch (system_error const& error) {
            auto const is_stale = of.is_stale();
            of.disconnect();
            auto const found = from_.passing(error, of);
            // The server has closed it just when it was asked again: that is no failure.
            if (!is_stale)
                failure = found;
        }
        give_back(of);
        if (!failure || context_.is_progress(of.brought - before))
            attempts.progress();
        if (!failure)
            continue;
        auto const cannot_go_on = failure->code() == gpurx::errc::too_many_flows || attempts.is_over();
        if (cannot_go_on && may_end(of, true))
            break;
        ++context_.counters.retries;
        if (!from_.has_sound())
            co_await attempts.async_pause(*failure);
    }
    if (context_.options.keep_connections)
        of.rest();
    if (!of.is_stale())
        from_.leave(of);
}

// Until there is nothing left to ask for, or the connection has come to its end.
asio::awaitable<bool> download::converse(lane& of)
{
    for (;;) {
        while (of.requests.empty() || of.has_room()) {
            auto next = take(!of.requests.empty());
            if (!next)
                break;
            co_await of.async_ask(std::move(*next));
        }
        if (of.requests.empty())
            co_return true;
        auto& current = of.requests.front();
        if (!current.answered)
            co_await of.async_read_header(current);
        auto const size = current.answer.size();
        auto const whole = co_await receive(of, current);
        auto const last = !whole || current.last;
        // A server may send less than it was asked for.
        auto const all = current.wanted.empty();
        if (all) {
            if (context_.is_progress(size))
                from_.progressed(of, of.speed_of(size));
            finish(of);
        }
        if (last || !all) {
            of.disconnect();
            co_return all;
        }
    }
}

asio::awaitable<bool> download::receive(lane& of, pending_request& what)
{
    auto& rest = what.answer;
    while (!rest.empty()) {
        auto const next = what.wanted.empty() ? rest.end : std::min(what.wanted.front().begin, rest.end);
        if (next == rest.begin) {
            co_await receive_piece(of, what);
            continue;
        }
        if (what.wanted.empty() && rest.size() > worth_skipping)
            co_return false;
        co_await of.on()->async_skip(next - rest.begin);
        rest.begin = next;
    }
    co_return true;
}

// As much of the next wanted bytes as has its place in one piece.
asio::awaitable<void> download::receive_piece(lane& of, pending_request& what)
{
    auto& wanted = what.wanted.front();
    auto const at_most = std::min(wanted.end, what.answer.end) - wanted.begin;
    auto const place = to_.place_of(wanted.begin, at_most, of.landing);
    auto const [code, placed] = co_await of.on()->async_body(place, of.stream);
    if (placed > 0)
        co_await to_.async_deliver(wanted.begin, place.first(placed), of.stream);
    context_.counters.bytes += placed;
    of.at()->bytes += placed;
    of.brought += placed;
    what.answer.begin += placed;
    wanted.begin += placed;
    if (wanted.empty())
        what.wanted.pop_front();
    of.on()->check(code);
}

// ---- the plan ----

// The next chunk. Ahead of its turn only if there is one for each other lane.
std::optional<pending_request> download::take(bool ahead)
{
    std::scoped_lock const lock{mutex_};
    if (plan_.size() <= (ahead ? (working_ - 1) * context_.options.chunk_size : 0))
        return std::nullopt;
    ++under_way_;
    if (!opened().serves_ranges)
        return pending_request{.asked = {}, .answer = {}, .wanted = plan_.take_within({0, opened().object.size})};
    auto [asked, wanted] = plan_.take(context_.options.chunk_size, worth_skipping);
    return pending_request{.asked = asked, .answer = {}, .wanted = std::move(wanted)};
}

void download::give_back(lane& of)
{
    std::scoped_lock const lock{mutex_};
    for (auto const& each : of.requests) {
        for (auto const& range : each.wanted)
            plan_.put(range);
    }
    under_way_ -= of.requests.size();
    of.requests.clear();
}

// The first of its requests.
void download::finish(lane& of)
{
    std::scoped_lock const lock{mutex_};
    of.requests.pop_front();
    --under_way_;
}

bool download::is_done()
{
    std::scoped_lock const lock{mutex_};
    return plan_.empty() && under_way_ == 0;
}

// Nothing is left to do; or the session or the server has no room for this lane, and others do its work. Whoever is
// counted looks into the plan once more, so that nothing stays there.
bool download::may_end(lane const& of, bool cannot_go_on)
{
    std::scoped_lock const lock{mutex_};
    auto const is_done = of.requests.empty() && plan_.empty();
    if (!is_done && !(cannot_go_on && working_ > 1))
        return false;
    --working_;
    return true;
}

}  // namespace gpurx::ingest::detail
