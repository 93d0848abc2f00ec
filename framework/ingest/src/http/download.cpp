// SPDX-License-Identifier: Apache-2.0
#include "download.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/gather.hpp>
#include <stdexcept>
#include <utility>

#include "patience.hpp"

namespace gpurx::ingest::detail {

namespace {

constexpr auto tuple = asio::as_tuple(asio::use_awaitable);
constexpr unsigned redirect_limit = 10;
// Of an answer that refuses, what is shown of its body.
constexpr std::size_t excerpt_size = 300;
// To receive more than this for nothing takes longer than a new connection.
constexpr std::uint64_t worth_skipping = 256 << 10;
// Requests of one connection that are under way together.
constexpr std::size_t pipelined = 2;

[[noreturn]] void fail(error_code code, url const& from, std::string advice)
{
    throw system_error{code,
                       {.operation = "fetch", .object = from.text, .kernel_message = {}, .advice = std::move(advice)}};
}

bool is_passing(error_code code)
{
    if (code.category() == boost::system::system_category())
        return code != asio::error::operation_aborted && code != asio::error::access_denied;
    return code == asio::error::eof || code == asio::error::host_not_found_try_again || code == errc::gave_up ||
           code == gpurx::errc::memory_locked_up || code == gpurx::errc::too_many_flows;
}

// A failure of one attempt, with the object's name; thrown on if no other attempt could go better.
passing_error passing(system_error const& failure, url const& from)
{
    auto why = failure.why();
    if (why.object.empty()) {
        why.operation = "fetch";
        why.object = from.text;
    }
    if (dynamic_cast<passing_error const*>(&failure) == nullptr && !is_passing(failure.code()))
        throw system_error{failure.code(), why};
    return {failure.code(), why};
}

// The first that is not there because of another.
void rethrow_first(std::span<std::size_t const> order, std::span<std::exception_ptr const> failures)
{
    for (auto const index : order) {
        if (failures[index] != nullptr)
            std::rethrow_exception(failures[index]);
    }
}

}  // namespace

download::download(asio::any_io_executor executor, rx_session& session, std::string_view text, http_options options)
    : executor_{std::move(executor)}, session_{session}, options_{options}
{
    if (options_.flows == 0 || options_.chunk_size == 0 || options_.attempts == 0)
        throw std::invalid_argument{"http_options: flows, chunk_size and attempts have to be at least 1"};
    error_code code;
    diagnostics why;
    from_ = parse_url(text, code, why);
    if (code)
        throw system_error{code, why};
    first_.executor = asio::make_strand(executor_);
}

asio::awaitable<void> download::async_open()
{
    co_await asio::co_spawn(first_.executor, open(), asio::use_awaitable);
}

asio::awaitable<void> download::async_read_front(host_span destination)
{
    co_await asio::co_spawn(first_.executor, read_front(destination), asio::use_awaitable);
}

asio::awaitable<void> download::async_fetch(std::span<placement const> placements)
{
    if (!places_.assign(placements, object_.size) || (!places_.all().empty() && places_.all().front().offset < front_))
        fail(gpurx::errc::bad_destination, from_, "places overlap, begin before the front, or end beyond the object");
    for (auto const& each : places_.all())
        plan_.put({each.offset, each.offset + each.destination.size()});
    auto lanes = make_lanes();
    working_ = lanes.size();
    using operation = decltype(asio::co_spawn(first_.executor, work(first_), asio::deferred));
    std::vector<operation> operations;
    operations.reserve(lanes.size());
    for (auto& each : lanes)
        operations.push_back(asio::co_spawn(each.executor, work(each), asio::deferred));
    auto const [order, failures] = co_await asio::experimental::make_parallel_group(std::move(operations))
                                       .async_wait(asio::experimental::wait_for_one_error(), asio::use_awaitable);
    rethrow_first(order, failures);
    co_await verify();
}

http_stats download::stats() const noexcept
{
    return {.requests = counters_.requests,
            .connections = counters_.connections,
            .retries = counters_.retries,
            .redirects = counters_.redirects,
            .bytes_placed = counters_.bytes};
}

// ---- the opening ----

asio::awaitable<void> download::open()
{
    patience attempts{first_.executor, options_.attempts};
    for (;;) {
        std::optional<passing_error> failure;
        try {
            if (co_await try_open())
                co_return;
        } catch (system_error const& error) {
            first_.on.reset();
            first_.requests.clear();
            failure = passing(error, from_);
        }
        if (failure) {
            ++counters_.retries;
            co_await attempts.async_pause(*failure);
        }
    }
}

asio::awaitable<bool> download::try_open()
{
    if (endpoints_.empty())
        co_await resolve();
    co_await connect(first_);
    byte_range const asked{0, options_.chunk_size};
    co_await ask(first_, {.asked = asked, .answer = {}, .wanted = {}});
    auto const head = co_await first_.on->async_answer();
    if (head.is_redirect()) {
        redirect(head);
        co_return false;
    }
    error_code code;
    std::string why;
    auto const found = understand_first(head, asked, code, why);
    if (code == errc::http_status)
        co_await refuse(head);
    if (code)
        fail(code, from_, why);
    object_ = found.object;
    serves_ranges_ = found.serves_ranges;
    announced_crc_ = head.crc32c;
    learn(first_, head);
    first_.requests.front() = {
        .asked = asked, .answer = found.follows, .wanted = {}, .answered = true, .last = !head.keep_alive};
    co_return true;
}

void download::redirect(answer const& head)
{
    first_.on.reset();
    first_.requests.clear();
    if (++redirects_ > redirect_limit)
        fail(errc::bad_redirect, from_, fmt::format("more than {} redirects", redirect_limit));
    error_code code;
    diagnostics why;
    auto next = follow(from_, head.location, code, why);
    if (code)
        throw system_error{code, why};
    from_ = std::move(next);
    endpoints_.clear();
    ++counters_.redirects;
}

// Throws what the server says.
asio::awaitable<void> download::refuse(answer const& head)
{
    std::string text;
    if (head.chunked) {
        // The size of the first chunk stands on a line of its own.
        text = co_await first_.on->async_excerpt(excerpt_size);
        text.erase(0, text.find('\n') + 1);
    } else if (auto const size = std::min<std::uint64_t>(head.length.value_or(0), excerpt_size); size > 0) {
        text.resize(size);
        auto const [code, arrived] = co_await first_.on->async_body(host_span{std::span{text}});
        text.resize(arrived);
    }
    auto words = status_text(head);
    if (!text.empty())
        words += ": " + text;
    diagnostics const why{.operation = "fetch", .object = from_.text, .kernel_message = {}, .advice = words};
    if (head.is_temporary())
        throw passing_error{errc::http_status, why};
    throw system_error{errc::http_status, why};
}

asio::awaitable<void> download::resolve()
{
    asio::ip::tcp::resolver resolver{first_.executor};
    auto const [code, found] = co_await resolver.async_resolve(from_.host, from_.port, tuple);
    if (code)
        throw system_error{code, {.operation = "resolve", .object = from_.host, .kernel_message = {}, .advice = {}}};
    endpoints_.assign(found.begin(), found.end());
}

asio::awaitable<void> download::read_front(host_span destination)
{
    patience attempts{first_.executor, options_.attempts};
    for (std::size_t placed = 0; placed < destination.size();) {
        if (front_ == object_.size)
            fail(asio::error::eof, from_, fmt::format("the object has {} bytes", object_.size));
        std::optional<passing_error> failure;
        auto const before = front_;
        try {
            co_await read_some({destination.data() + placed, destination.size() - placed});
        } catch (system_error const& error) {
            first_.on.reset();
            first_.requests.clear();
            failure = passing(error, from_);
        }
        placed += front_ - before;
        if (front_ != before)
            attempts.progress();
        if (failure) {
            ++counters_.retries;
            co_await attempts.async_pause(*failure);
        }
    }
}

// From the answer under way, or a new one; moves the front on.
asio::awaitable<std::size_t> download::read_some(host_span destination)
{
    if (first_.on == nullptr)
        co_await connect(first_);
    if (first_.requests.empty()) {
        byte_range const next{front_, std::min<std::uint64_t>(front_ + options_.chunk_size, object_.size)};
        co_await ask(first_, {.asked = serves_ranges_ ? next : byte_range{}, .answer = {}, .wanted = {}});
        co_await read_header(first_, first_.requests.front());
    }
    auto& current = first_.requests.front();
    co_await first_.on->async_skip(front_ - current.answer.begin);
    auto const size = std::min<std::uint64_t>(destination.size(), current.answer.end - front_);
    auto const [code, placed] = co_await first_.on->async_body(host_span{destination.data(), size});
    sum_up(front_, {memory_kind::host, reinterpret_cast<std::uintptr_t>(destination.data()), placed});
    front_ += placed;
    counters_.bytes += placed;
    current.answer.begin = front_;
    first_.on->check(code);
    if (!current.answer.empty())
        co_return placed;
    if (current.last)
        first_.on.reset();
    first_.requests.clear();
    co_return placed;
}

// ---- the lanes ----

asio::awaitable<void> download::connect(lane& of)
{
    of.on = std::make_shared<http_connection>(of.executor, session_, options_.timeout, options_.stream);
    of.asked = of.answered = 0;
    ++counters_.connections;
    co_await of.on->async_connect(endpoints_);
}

std::vector<download::lane> download::make_lanes()
{
    std::vector<lane> lanes;
    lanes.push_back({.executor = first_.executor,
                     .on = std::exchange(first_.on, nullptr),
                     .requests = std::exchange(first_.requests, {}),
                     .asked = first_.asked,
                     .answered = first_.answered});
    if (auto& opened = lanes.front().requests; !opened.empty())
        opened.front().wanted = plan_.take_within(opened.front().answer);
    auto const chunks = (plan_.size() + options_.chunk_size - 1) / options_.chunk_size;
    auto const count = serves_ranges_ ? std::min<std::uint64_t>(options_.flows, chunks + 1) : 1;
    while (lanes.size() < count)
        lanes.push_back({.executor = asio::make_strand(executor_), .on = {}, .requests = {}});
    return lanes;
}

asio::awaitable<void> download::work(lane& of)
{
    patience attempts{of.executor, options_.attempts};
    while (!may_end(of, false)) {
        std::optional<passing_error> failure;
        auto const before = of.brought;
        try {
            if (of.on == nullptr)
                co_await connect(of);
            co_await converse(of);
        } catch (system_error const& error) {
            of.on.reset();
            failure = passing(error, from_);
        }
        give_back(of);
        if (of.brought != before)
            attempts.progress();
        if (!failure)
            continue;
        auto const cannot_go_on = failure->code() == gpurx::errc::too_many_flows || attempts.is_over();
        if (cannot_go_on && may_end(of, true))
            co_return;
        ++counters_.retries;
        co_await attempts.async_pause(*failure);
    }
}

// Until there is nothing left to ask for, or the connection has come to its end.
asio::awaitable<void> download::converse(lane& of)
{
    for (;;) {
        while (of.requests.empty() || (of.requests.size() < pipelined && of.asked < per_connection_)) {
            auto next = take(!of.requests.empty());
            if (!next)
                break;
            co_await ask(of, std::move(*next));
        }
        if (of.requests.empty())
            co_return;
        auto& current = of.requests.front();
        if (!current.answered)
            co_await read_header(of, current);
        auto const whole = co_await receive(of, current);
        auto const last = !whole || current.last;
        // A server may send less than it was asked for.
        auto const all = current.wanted.empty();
        if (all)
            of.requests.pop_front();
        if (last || !all) {
            of.on.reset();
            co_return;
        }
    }
}

asio::awaitable<void> download::ask(lane& of, request what)
{
    of.requests.push_back(std::move(what));
    ++of.asked;
    ++counters_.requests;
    co_await of.on->async_send(get_request(from_, of.requests.back().asked));
}

asio::awaitable<void> download::read_header(lane& of, request& what)
{
    auto const head = co_await of.on->async_answer();
    error_code code;
    std::string why;
    auto const bytes = understand(head, what.asked, object_, code, why);
    diagnostics const words{.operation = "fetch", .object = from_.text, .kernel_message = {}, .advice = why};
    if (code == errc::http_status && head.is_temporary())
        throw passing_error{code, words};
    if (code)
        throw system_error{code, words};
    what.answer = bytes;
    what.answered = true;
    what.last = !head.keep_alive;
    learn(of, head);
}

asio::awaitable<bool> download::receive(lane& of, request& what)
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
        co_await of.on->async_skip(next - rest.begin);
        rest.begin = next;
    }
    co_return true;
}

// As much of the next wanted bytes as has its place in one piece.
asio::awaitable<void> download::receive_piece(lane& of, request& what)
{
    auto& wanted = what.wanted.front();
    auto const place = places_.find(wanted.begin, std::min(wanted.end, what.answer.end) - wanted.begin);
    auto const [code, placed] = co_await of.on->async_body(place);
    if (placed > 0)
        sum_up(wanted.begin, place.first(placed));
    counters_.bytes += placed;
    of.brought += placed;
    what.answer.begin += placed;
    wanted.begin += placed;
    if (wanted.empty())
        what.wanted.erase(what.wanted.begin());
    of.on->check(code);
}

// ---- the plan ----

// The next chunk. Ahead of its turn only if there is one for each other lane.
std::optional<download::request> download::take(bool ahead)
{
    std::scoped_lock const lock{mutex_};
    if (plan_.size() <= (ahead ? (working_ - 1) * options_.chunk_size : 0))
        return std::nullopt;
    if (!serves_ranges_)
        return request{.asked = {}, .answer = {}, .wanted = plan_.take_within({0, object_.size})};
    auto const next = plan_.take(options_.chunk_size);
    return request{.asked = next, .answer = {}, .wanted = {next}};
}

void download::give_back(lane& of)
{
    std::scoped_lock const lock{mutex_};
    for (auto const& each : of.requests) {
        for (auto const& range : each.wanted)
            plan_.put(range);
    }
    of.requests.clear();
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

void download::learn(lane& of, answer const& head)
{
    ++of.answered;
    if (!head.keep_alive)
        per_connection_ = of.answered;
    else if (of.answered >= per_connection_)
        per_connection_ = of.answered + 1;
}

// ---- the checksum ----

bool download::sums_up() const noexcept
{
    using checksum = http_options::checksum;
    return options_.crc32c == checksum::always || (options_.crc32c == checksum::automatic && announced_crc_);
}

void download::sum_up(std::uint64_t offset, device_span bytes)
{
    if (!sums_up() || bytes.empty())
        return;
    std::unique_lock lock{mutex_};
    auto const result = sums_.add({offset, offset + bytes.size()}, bytes.kind());
    lock.unlock();
    crc32c(bytes, result, options_.stream);
}

asio::awaitable<void> download::verify()
{
    if (!sums_up())
        co_return;
    if (sums_.on_gpu()) {
        auto const on_gpu = std::ranges::find(places_.all(), memory_kind::device,
                                              [](placement const& each) { return each.destination.kind(); });
        auto const [code] = co_await gpurx::async_wait(first_.executor, options_.stream, on_gpu->destination, tuple);
        if (code)
            fail(code, from_, "the GPU did not finish the checksum");
    }
    computed_crc_ = sums_.combine(object_.size);
    if (computed_crc_ && announced_crc_ && computed_crc_ != announced_crc_)
        fail(errc::wrong_checksum, from_,
             fmt::format("CRC32C is {:08x}, the server announced {:08x}", *computed_crc_, *announced_crc_));
}

}  // namespace gpurx::ingest::detail
