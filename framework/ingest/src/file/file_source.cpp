// SPDX-License-Identifier: Apache-2.0
#include "file_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/gather.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../net/io_threads.hpp"
#include "../net/url.hpp"
#include "../together.hpp"
#include "disk_file.hpp"

namespace gpurx::ingest::detail {

namespace {

constexpr auto with_wait_code = asio::as_tuple(asio::use_awaitable);
// Two reads cost more than one that has so many bytes for nothing.
constexpr std::uint64_t worth_reading = 64 << 10;

std::byte* pointer_to(memory_span place) noexcept
{
    return reinterpret_cast<std::byte*>(place.address());
}

}  // namespace

file_source::file_source(asio::any_io_executor executor, std::string_view text, fetch_options options)
    : executor_{std::move(executor)}, options_{std::move(options)}, text_{text}
{
    if (options_.flows == 0 || options_.chunk_size == 0)
        throw std::invalid_argument{"fetch_options: flows and chunk_size must be at least 1"};
    if (!options_.mirrors.empty())
        throw std::invalid_argument{"fetch_options: a file has no mirrors"};
    error_code code;
    diagnostics why;
    path_ = parse_path(text, code, why);
    if (code)
        throw system_error{code, why};
}

asio::awaitable<void> file_source::async_open()
{
    if (options_.deadline != std::chrono::milliseconds{0})
        deadline_ = std::chrono::steady_clock::now() + options_.deadline;
    std::string advice;
    auto const code = co_await async_run(executor_, [this, &advice] { return file_.open(path_, advice); });
    if (code)
        fail("open", code, advice);
    check_time();
    etag_ = file_.tag();
}

asio::awaitable<void> file_source::async_read_front(host_span destination)
{
    if (destination.size() > file_.size() - front_)
        fail("read", asio::error::eof, fmt::format("the file has {} bytes", file_.size()));
    byte_range const bytes{front_, front_ + destination.size()};
    check(co_await async_run(executor_, [&] { return read(bytes, destination.data(), bytes.end); }));
    sums_.add_front(front_, {destination.data(), destination.size()});
    front_ = bytes.end;
    counters_.bytes += bytes.size();
}

asio::awaitable<void> file_source::async_fetch(std::span<placement const> placements)
{
    if (!to_.to(placements, front_, file_.size()))
        fail("read", gpurx::errc::bad_destination, "places overlap, begin before the front, or end beyond the file");
    plan_ = {};
    for (auto const& each : to_.wanted())
        plan_.add(each);
    co_await run();
}

asio::awaitable<void> file_source::async_fetch_pieces(piece_consumer take)
try {
    to_.to(std::move(take));
    plan_ = {};
    plan_.add({front_, file_.size()});
    co_await run();
} catch (consumer_failure const& failed) {
    std::rethrow_exception(failed.why);
}

asio::awaitable<void> file_source::run()
{
    file_.read_directly();
    sums_.begin();
    auto const pieces = (plan_.size() + options_.chunk_size - 1) / options_.chunk_size;
    std::vector<lane> lanes(std::clamp<std::uint64_t>(pieces, 1, options_.flows));
    using operation = decltype(asio::co_spawn(executor_, work(lanes.front()), asio::deferred));
    std::vector<operation> operations;
    operations.reserve(lanes.size());
    stream_fork streams{options_.stream, to_.on_gpus(), lanes.size()};
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        lanes[i].executor = asio::make_strand(executor_);
        lanes[i].stream = streams[i];
        operations.push_back(asio::co_spawn(lanes[i].executor, work(lanes[i]), asio::deferred));
    }
    auto const ended =
        co_await run_together(executor_, std::move(operations), asio::experimental::wait_for_one_error());
    // After a failure, too: the caller may free the places in the order of its stream.
    streams.join();
    rethrow_first(ended);
    check(co_await async_run(executor_, [this] { return file_.check_unchanged(); }));
    diagnostics const about{.operation = "check", .object = printable(text_, 2000), .kernel_message = {}, .advice = {}};
    co_await sums_.async_verify(executor_, to_.on_gpu(), about, file_.size());
}

fetch_stats file_source::stats() const noexcept
{
    fetch_stats result;
    result.requests = counters_.reads;
    result.bytes_placed = counters_.bytes;
    return result;
}

void file_source::fail(char const* operation, error_code code, std::string advice) const
{
    throw system_error{
        code,
        {.operation = operation, .object = printable(text_, 2000), .kernel_message = {}, .advice = std::move(advice)}};
}

void file_source::check(error_code code) const
{
    if (code == errc::object_changed)
        fail("read", code, "another process has written or shortened the file; load it again after that");
    if (code)
        fail("read", code, {});
}

// ---- the flows ----

void file_source::check_time() const
{
    if (std::chrono::steady_clock::now() > deadline_)
        fail("read", errc::gave_up, "fetch_options::deadline has passed");
}

asio::awaitable<void> file_source::work(lane& of)
{
    std::optional<pinned_piece> last;
    while (auto const piece = take()) {
        check_time();
        if (to_.hands_on())
            co_await hand_over(of, *piece);
        else if (is_for_gpu(*piece))
            last = co_await bring_pinned(of, *piece, last);
        else
            co_await bring(of, *piece);
    }
    if (last)
        co_await upload(of, *last);
}

void file_source::note_placed(lane& of, fetch_piece const& piece)
{
    for_each_place(piece, [&](std::uint64_t offset, memory_span place) {
        sums_.add(offset, place, of.stream);
        counters_.bytes += place.size();
    });
}

asio::awaitable<void> file_source::hand_over(lane& of, fetch_piece const& piece)
{
    auto const blocks = of.memory[0].on_host(staging_size());
    auto const around = blocks_around(piece.asked, file_.aligned().offset);
    check(co_await async_run(executor_, [&] { return read(around, blocks.data(), piece.asked.end); }));
    for (auto at = piece.asked.begin; at < piece.asked.end;) {
        auto const bytes =
            blocks.subspan(at - around.begin, std::min<std::uint64_t>(piece.asked.end - at, delivery::piece_size));
        co_await to_.async_deliver(at, destination{host_span{bytes}}.where(), {});
        counters_.bytes += bytes.size();
        at += bytes.size();
    }
}

asio::awaitable<void> file_source::bring(lane& of, fetch_piece const& piece)
{
    auto const bytes = piece.wanted.front();
    auto const place = to_.places().find(bytes.begin, bytes.size());
    auto const is_one = place.size() == piece.asked.size();
    auto const in_place = is_one && (file_.aligned().offset == 1 || bytes.size() >= worth_reading)
                              ? split_in_place(bytes, place.address(), file_.aligned())
                              : std::nullopt;
    auto const blocks = of.memory[0].on_host(staging_size());  // no pages, unless they are used
    check(co_await async_run(executor_, [&] {
        if (read_cached(piece))
            return error_code{};
        return in_place ? read_in_place_of(bytes, place, *in_place, blocks) : read_and_spread(piece, blocks);
    }));
    note_placed(of, piece);
}

asio::awaitable<file_source::pinned_piece> file_source::bring_pinned(lane& of, fetch_piece const& piece,
                                                                     std::optional<pinned_piece> const& last)
{
    of.turn = 1 - of.turn;
    pinned_piece next{.piece = piece, .blocks = of.memory[of.turn].pinned(staging_size())};
    using operation = decltype(asio::co_spawn(of.executor, read_pinned(next), asio::deferred));
    std::vector<operation> both;
    both.push_back(asio::co_spawn(of.executor, read_pinned(next), asio::deferred));
    if (last)
        both.push_back(asio::co_spawn(of.executor, upload(of, *last), asio::deferred));
    rethrow_first(co_await run_together(executor_, std::move(both), asio::experimental::wait_for_one_error()));
    co_return next;
}

asio::awaitable<void> file_source::read_pinned(pinned_piece const& into)
{
    check(co_await async_run(executor_, [&] { return read_and_spread(into.piece, into.blocks); }));
}

error_code file_source::read_in_place_of(byte_range bytes, memory_span place, read_in_place const& parts,
                                         std::span<std::byte> block)
{
    auto* const to = pointer_to(place);
    if (auto const code = read(parts.blocks, to + (parts.blocks.begin - bytes.begin), parts.blocks.end))
        return code;
    for (auto const& end : {parts.head, parts.tail}) {
        if (end.empty())
            continue;
        auto const around = blocks_around(end, file_.aligned().offset);
        if (auto const code = read(around, block.data(), end.end))
            return code;
        std::memcpy(to + (end.begin - bytes.begin), block.data() + (end.begin - around.begin), end.size());
    }
    return {};
}

bool file_source::read_cached(fetch_piece const& piece)
{
    auto is_there = true;
    for_each_place(piece, [&](std::uint64_t offset, memory_span place) {
        is_there = is_there && file_.read_cached(offset, {pointer_to(place), place.size()});
    });
    counters_.reads += is_there ? 1 : 0;
    return is_there;
}

// What belongs on the host goes there.
error_code file_source::read_and_spread(fetch_piece const& piece, std::span<std::byte> blocks)
{
    auto const around = blocks_around(piece.asked, file_.aligned().offset);
    if (auto const code = read(around, blocks.data(), piece.asked.end))
        return code;
    for_each_place(piece, [&](std::uint64_t offset, memory_span place) {
        if (place.kind() == memory_kind::host)
            std::memcpy(pointer_to(place), blocks.data() + (offset - around.begin), place.size());
    });
    return {};
}

// The last block may end beyond the file; `end` does not.
error_code file_source::read(byte_range blocks, std::byte* to, std::uint64_t end)
{
    ++counters_.reads;
    if (file_.read_cached(blocks.begin, {to, end - blocks.begin}))
        return {};
    return file_.read(blocks.begin, {to, blocks.size()}, end - blocks.begin);
}

asio::awaitable<void> file_source::upload(lane& of, pinned_piece const& what)
{
    auto const begin = blocks_around(what.piece.asked, file_.aligned().offset).begin;
    error_code code;
    memory_span last;
    for_each_place(what.piece, [&](std::uint64_t offset, memory_span place) {
        if (place.kind() == memory_kind::host)
            return;
        fragment const from{.address = reinterpret_cast<std::uintptr_t>(what.blocks.data()) + (offset - begin),
                            .size = place.size()};
        last = place;
        if (!code)
            gather({&from, 1}, place, of.stream, code);
    });
    // Whatever happens: the GPU reads these blocks.
    auto const [waited] = co_await gpurx::async_wait(
        of.executor, of.stream, last, asio::bind_cancellation_slot(asio::cancellation_slot{}, with_wait_code));
    if (code)
        fail("upload", code, {});
    if (waited)
        fail("upload", waited, "the GPU did not finish the copy");
    note_placed(of, what.piece);
}

// ---- the plan ----

std::optional<fetch_piece> file_source::take()
{
    std::scoped_lock const lock{mutex_};
    auto piece = plan_.take(options_.chunk_size, worth_reading);
    if (piece.asked.empty())
        return std::nullopt;
    if (piece.asked.size() == options_.chunk_size)
        plan_.put(end_with_block(piece, file_.aligned().offset));
    return piece;
}

bool file_source::is_for_gpu(fetch_piece const& piece) const noexcept
{
    bool found = false;
    for_each_place(piece, [&found](std::uint64_t /*offset*/, memory_span place) {
        found = found || place.kind() == memory_kind::device;
    });
    return found;
}

// A piece, and the rest of the blocks at its ends.
std::size_t file_source::staging_size() const noexcept
{
    return options_.chunk_size + 2 * file_.aligned().offset;
}

template <class Use>
void file_source::for_each_place(fetch_piece const& piece, Use use) const
{
    for (auto bytes : piece.wanted) {
        while (!bytes.empty()) {
            auto const place = to_.places().find(bytes.begin, bytes.size());
            use(bytes.begin, place);
            bytes.begin += place.size();
        }
    }
}

}  // namespace gpurx::ingest::detail
