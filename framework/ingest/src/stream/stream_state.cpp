// SPDX-License-Identifier: Apache-2.0
//
// The steps of a frame, from its head to the batches. Connections and sources are in stream_sources.cpp.
#include "stream_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <utility>

#include "epoch.hpp"

namespace gpurx::ingest::detail {

namespace {

constexpr std::size_t others_remembered = 64;

[[noreturn]] void abort_step()
{
    throw system_error{asio::error::operation_aborted, {}};
}

// The oldest, but of a sender, whose rows are lost, only if there is no other.
void forget_one(std::deque<source_error>& errors)
{
    auto const least =
        std::ranges::find_if(errors, [](source_error const& each) { return each.code != errc::wrong_source; });
    errors.erase(least != errors.end() ? least : errors.begin());
}

}  // namespace

void refuse_frame(std::string why)
{
    throw system_error{errc::bad_frame,
                       {.operation = "read frame", .object = {}, .kernel_message = {}, .advice = std::move(why)}};
}

stream_state::stream_state(asio::any_io_executor executor, rx_session& session, tensor_stream_options options)
    : executor_{std::move(executor)},
      strand_{asio::make_strand(executor_)},
      options_{std::move(options)},
      place_{std::make_shared<place>(options_.gpu)},
      pool_{std::make_shared<batch_pool>()},
      ready_{executor_, place_->stream(), options_.stream},
      session_{&session},
      changed_{strand_, asio::steady_timer::time_point::max()}
{
    check_options();
    find_sources();
    learn_tensors({.tensors = options_.tensors});
}

void stream_state::start()
{
    ready_.notify([this] { asio::post(strand_, [self = shared_from_this()] { self->room_made(); }); });
    for (auto const& here : options_.listen)
        listen_at(here);
    asio::post(strand_, [self = shared_from_this()] { self->begin(); });
}

void stream_state::close() noexcept
try {
    {
        std::scoped_lock const lock{session_mutex_};
        session_ = nullptr;
    }
    ready_.end(asio::error::operation_aborted);
    ready_.drop();
    asio::post(strand_, [self = shared_from_this()] { self->stop(); });
} catch (...) {
    // No memory to say it: the coroutines find the session gone.
}

std::vector<source_error> stream_state::errors() const
{
    std::scoped_lock const lock{told_mutex_};
    std::vector<source_error> all{errors_of_sources_.begin(), errors_of_sources_.end()};
    all.insert(all.end(), errors_of_others_.begin(), errors_of_others_.end());
    return all;
}

tensor_stream_stats stream_state::stats() const
{
    std::scoped_lock const lock{told_mutex_};
    auto now = stats_;
    now.batches = ready_.taken();
    now.memory = place_->in_use();
    now.memory_high_water = place_->high_water();
    return now;
}

void stream_state::report(source_error const& error)
{
    {
        std::scoped_lock const lock{told_mutex_};
        auto& list =
            error.source && error.code.category() == ingest_category() ? errors_of_sources_ : errors_of_others_;
        list.push_back(error);
        if (errors_of_others_.size() > others_remembered)
            forget_one(errors_of_others_);
    }
    if (options_.on_error)
        options_.on_error(error);
}

// ---- the tensors ----

void stream_state::check_tensors(frame_head const& head) const
{
    if (!layout_ || head.tensors.empty() || std::ranges::equal(head.tensors, layout_->tensors()))
        return;
    if (head.tensors.size() != layout_->tensors().size())
        refuse_frame(fmt::format("frame {} has {} tensors, and the stream has {}", head.sequence, head.tensors.size(),
                                 layout_->tensors().size()));
    auto const [here, there] = std::ranges::mismatch(head.tensors, layout_->tensors());
    refuse_frame(fmt::format("frame {} has tensor {} {} [{}] where the stream has {} {} [{}]", head.sequence,
                             here->name, name_of(here->type), fmt::join(here->row_shape, ", "), there->name,
                             name_of(there->type), fmt::join(there->row_shape, ", ")));
}

void stream_state::learn_tensors(frame_head const& head)
{
    if (!layout_ && !head.tensors.empty())
        layout_.emplace(head.tensors, options_.batch_size, options_.max_batch_size);
}

// ---- the steps ----

asio::awaitable<bool> stream_state::admit(std::shared_ptr<connection> from, frame_head const& head)
{
    using verdict = source_progress::verdict;
    if (stopped_)
        abort_step();
    introduce(from, head);
    auto const& progress = sources_[index_of(head.source)].progress;
    switch (progress.judge(head.sequence)) {
        case verdict::next:
            break;
        case verdict::duplicate: {
            std::scoped_lock const lock{told_mutex_};
            ++stats_.duplicates;
            co_return false;
        }
        case verdict::gap:
            refuse_frame(fmt::format("frame {} came in the place of frame {}", head.sequence, progress.expected()));
        case verdict::after_end:
            refuse_frame(fmt::format("frame {} came after the last, {}", head.sequence, progress.expected() - 1));
    }
    // Its next epoch begins when all have ended this one.
    while (sources_[index_of(head.source)].epoch_over) {
        co_await change();
        if (sources_[index_of(head.source)].now != from)
            abort_step();
    }
    check_tensors(head);
    co_return true;
}

asio::awaitable<stream_state::ticket> stream_state::accept(std::shared_ptr<connection> from, frame_head const& head)
{
    auto const index = index_of(head.source);
    auto& its = sources_[index];
    if (stopped_ || its.now != from)
        abort_step();
    check_tensors(head);
    learn_tensors(head);
    its.progress.take(head.is_last);
    auto const number = turns_->take(index);
    its.has_bare_end = head.is_last && head.rows == 0;
    // What has no rows is taken, or saved, with what is before it.
    if (options_.acknowledge == acknowledge_when::received || (its.has_bare_end && its.acknowledged == head.sequence))
        acknowledge_frames(its, head.sequence + 1);
    if (head.ends_epoch) {
        its.epoch_over = true;
        turns_->end(index);
    }
    if (head.is_last) {
        its.confirmed = !from->greeted;
        end_source(index, {}, {});
    }
    changed();
    co_return number;
}

asio::awaitable<void> stream_state::put_rows(std::shared_ptr<connection> from, frame_head const& head, ticket number)
{
    while (turns_->next() != number)
        co_await change();
    try {
        co_await put_rows_now(*from, head);
    } catch (system_error const& error) {
        fail(error.code(), error.why());  // half a frame is in a batch
        throw;
    }
    turns_->placed();
    {
        std::scoped_lock const lock{told_mutex_};
        ++stats_.frames;
        stats_.rows += head.rows;
        stats_.payload_bytes += head.payload_size();
    }
    changed();
    end_if_complete();
}

asio::awaitable<void> stream_state::put_rows_now(connection& from, frame_head const& head)
{
    auto& at = sources_[index_of(head.source)].placed;
    // Where another process was in this frame.
    auto const begin = at.frame == head.sequence ? at.row : 0;
    if (begin > head.rows)
        refuse_frame(fmt::format("frame {} has {} rows, but {} were already taken from it: it is not the same frame",
                                 head.sequence, head.rows, begin));
    auto const placed_until = [&](std::size_t row) {
        auto const all = row == head.rows;
        at.frame = head.sequence + (all ? 1 : 0);
        at.row = all ? 0 : row;
        at.epoch_ended = all && head.ends_epoch;
        at.ended = all && head.is_last;
    };
    placed_until(begin);
    for (std::size_t row = begin; row < head.rows;) {
        auto const count = co_await put_some(from, head.rows, row);
        row += count;
        placed_until(row);
        if (options_.shuffle > 0 && filled_ == order_.size())
            end_window();
        else if (options_.shuffle == 0 && filled_ == options_.batch_size)
            hand_out(std::move(filling_), std::exchange(filled_, 0), position());
    }
}

// ---- batches ----

asio::awaitable<void> stream_state::change()
{
    if (!stopped_)
        co_await changed_.async_wait(asio::as_tuple(asio::deferred));
    if (stopped_)
        abort_step();
}

void stream_state::changed()
{
    changed_.cancel();
}

void stream_state::room_made()
{
    if (ready_.has_failed())
        stop();
    if (auto const taken = ready_.position(); taken && options_.acknowledge == acknowledge_when::taken)
        acknowledge_until(*taken);
    changed();
}

std::shared_ptr<stream_position const> stream_state::position() const
{
    stream_position now{.epoch = epoch_, .window = windows_};
    for (auto const& each : sources_)
        now.sources.push_back(each.placed);
    return std::make_shared<stream_position const>(std::move(now));
}

void stream_state::acknowledge(stream_position until)
{
    asio::post(strand_, [self = shared_from_this(), until = std::move(until)] {
        if (self->options_.acknowledge == acknowledge_when::saved)
            self->acknowledge_until(until);
    });
}

void stream_state::acknowledge_until(stream_position const& until)
{
    for (auto const& each : until.sources) {
        auto const its = std::ranges::find(sources_, each.source, &source::number);
        if (its != sources_.end())
            acknowledge_frames(*its, std::min(each.frame, its->progress.expected()));
    }
}

void stream_state::acknowledge_frames(source& its, std::uint64_t count)
{
    if (its.has_bare_end && count + 1 == its.progress.expected())
        ++count;
    if (count <= its.acknowledged)
        return;
    its.acknowledged = count;
    if (!its.now || !its.now->greeted)
        return;
    asio::post(its.now->strand, [who = its.now, count] {
        who->acknowledged = std::max(who->acknowledged, count);
        who->ack_due.cancel();
    });
}

asio::awaitable<std::unique_ptr<block>> stream_state::empty_block()
{
    while (ready_.size() >= options_.queue_depth)
        co_await change();
    // What a program held more of than it does now.
    if (auto const spare = pool_->take_beyond(options_.queue_depth))
        co_await until_read(*spare);
    auto found = pool_->take();
    if (!found)
        co_return std::make_unique<block>(place_, layout_->size());
    // Rather than one more, so that a program which runs ahead of its GPU does not fill the GPU's memory.
    co_await until_read(*found);
    co_return found;
}

asio::awaitable<void> stream_state::until_read(block const& memory)
{
    if (!memory.read_until)
        co_return;
    auto const [failure] = co_await async_wait(strand_, memory.read_until, outcome);
    if (failure)
        throw system_error{failure, {.operation = "wait for batch", .object = {}, .kernel_message = {}, .advice = {}}};
    if (stopped_)
        abort_step();
}

// From this row on as many as have one place to go to.
asio::awaitable<std::size_t> stream_state::put_some(connection& from, std::size_t frame_rows, std::size_t from_row)
{
    if (options_.shuffle > 0) {
        if (window_.empty())
            co_await begin_window();
        auto const place = order_[filled_++];
        fill(from, *window_[place / options_.batch_size], place % options_.batch_size, frame_rows, from_row, 1);
        co_return 1;
    }
    if (!filling_)
        filling_ = co_await empty_block();
    auto const count = std::min(frame_rows - from_row, options_.batch_size - filled_);
    fill(from, *filling_, filled_, frame_rows, from_row, count);
    filled_ += count;
    co_return count;
}

void stream_state::fill(connection& from, block& to, std::size_t to_row, std::size_t frame_rows, std::size_t from_row,
                        std::size_t count)
{
    layout_->copies(frame_rows, from_row, to_row, count, copies_);
    place_->copy(from.frame.span(), to.memory.span(), copies_);
}

void stream_state::hand_out(std::unique_ptr<block> filled, std::size_t rows, shared_position behind)
{
    std::vector<tensor> tensors;
    for (std::size_t i = 0; i < layout_->tensors().size(); ++i) {
        auto const& spec = layout_->tensors()[i];
        std::vector<std::uint64_t> shape{rows};
        shape.insert(shape.end(), spec.row_shape.begin(), spec.row_shape.end());
        auto const bytes = filled->memory.span().subspan(layout_->offset(i), rows * layout_->row_size(i));
        tensors.push_back({spec.name, spec.type, std::move(shape), bytes});
    }
    ready_.put(batch{pool_, std::move(filled), rows, std::move(tensors), options_.stream, std::move(behind)});
}

// ---- shuffled ----

asio::awaitable<void> stream_state::begin_window()
{
    auto const batches = (options_.shuffle + options_.batch_size - 1) / options_.batch_size;
    window_begin_ = position();
    std::vector<std::unique_ptr<block>> blocks;
    while (blocks.size() < batches)
        blocks.push_back(co_await empty_block());
    order_ = shuffled(batches * options_.batch_size, options_.seed, epoch_, windows_);
    window_ = std::move(blocks);
}

// Hands out what is in the window: all of it, or at the end of an epoch what came.
void stream_state::end_window()
{
    auto const rows = std::exchange(filled_, 0);
    auto const size = options_.batch_size;
    if (rows < order_.size())
        close_ranks(rows);
    ++windows_;
    auto const behind = position();
    std::size_t begin = 0;
    for (std::uint64_t number = 1; auto& each : std::exchange(window_, {})) {
        auto const count = std::min(size, rows - begin);
        begin += count;
        auto within = *window_begin_;
        within.batches = number++;
        if (count == 0 || (count < size && options_.drop_last) || within.batches <= batches_taken_)
            pool_->give_back(std::move(each), place_->stream());
        else
            hand_out(std::move(each), count,
                     begin == rows ? behind : std::make_shared<stream_position const>(std::move(within)));
    }
    batches_taken_ = 0;
}

// Some places of the window are empty: the others move up, so that what is handed out begins at the first.
void stream_state::close_ranks(std::size_t rows)
{
    std::vector<std::size_t> places{order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(rows)};
    std::ranges::sort(places);
    auto const size = options_.batch_size;
    for (std::size_t to = 0; to < places.size(); ++to) {
        auto const from = places[to];
        if (from == to)
            continue;
        copies_.clear();
        for (std::size_t i = 0; i < layout_->tensors().size(); ++i) {
            auto const row = layout_->row_size(i);
            auto const begin = layout_->offset(i);
            copies_.push_back({begin + from % size * row, begin + to % size * row, row});
        }
        place_->copy(window_[from / size]->memory.span(), window_[to / size]->memory.span(), copies_);
    }
}

// ---- the end ----

void stream_state::end_if_complete()
{
    auto const is_over = [](source const& each) { return each.ended || each.epoch_over; };
    if (stopped_ || turns_->waiting() > 0 || !std::ranges::all_of(sources_, is_over))
        return;
    if (!all_ended_) {
        hand_out_rest();
        if (!std::ranges::all_of(sources_, &source::ended))
            return begin_epoch();
        all_ended_ = true;
        ready_.end(asio::error::eof, position());
    }
    if (std::ranges::all_of(sources_, &source::confirmed))
        stop();
}

void stream_state::hand_out_rest()
{
    if (filled_ == 0)
        return;
    if (options_.shuffle > 0)
        return end_window();
    auto const rows = std::exchange(filled_, 0);
    if (!options_.drop_last)
        hand_out(std::move(filling_), rows, position());
}

void stream_state::begin_epoch()
{
    ++epoch_;
    windows_ = 0;
    std::vector<bool> ended;
    for (auto& each : sources_) {
        each.epoch_over = false;
        each.placed.epoch_ended = false;
        each.placed.epoch_frame = each.placed.frame;
        ended.push_back(each.ended);
    }
    turns_->begin(std::move(ended), 0);
    ready_.put_end_of_epoch(position());
    changed();
}

void stream_state::confirm(std::size_t index)
{
    sources_[index].confirmed = true;
    end_if_complete();
}

void stream_state::fail(error_code code, diagnostics why)
{
    if (stopped_)
        return;
    ready_.end(code);
    report({.source = {}, .peer = {}, .code = code, .why = std::move(why)});
    stop();
}

void stream_state::stop()
{
    stopped_ = true;
    acceptors_.clear();
    for (auto& each : sources_) {
        each.absence.cancel();
        each.retry.cancel();
    }
    for (auto const& each : connections_)
        close_soon(each);
    changed();
}

}  // namespace gpurx::ingest::detail
