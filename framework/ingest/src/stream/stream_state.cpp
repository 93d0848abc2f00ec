// SPDX-License-Identifier: Apache-2.0
//
// The steps of a frame, from its head to the batches. Connections and sources are in stream_sources.cpp.
#include "stream_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <utility>

namespace gpurx::ingest::detail {

namespace {

constexpr std::size_t others_remembered = 64;

[[noreturn]] void abort_step()
{
    throw system_error{asio::error::operation_aborted, {}};
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
            errors_of_others_.pop_front();
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
            refuse_frame(fmt::format("frame {} came where frame {} was to come", head.sequence, progress.expected()));
        case verdict::after_end:
            refuse_frame(fmt::format("frame {} came after the last, {}", head.sequence, progress.expected() - 1));
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
    if (head.is_last)
        end_source(index, {}, {});
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
    for (std::size_t row = 0; row < head.rows;) {
        if (!filling_)
            filling_ = co_await empty_block();
        auto const count = std::min<std::size_t>(head.rows - row, options_.batch_size - filled_);
        fill(from, head.rows, row, count);
        row += count;
        if (filled_ == options_.batch_size)
            hand_out();
    }
}

// ---- batches ----

asio::awaitable<void> stream_state::change()
{
    if (!stopped_)
        co_await changed_.async_wait(outcome);
    if (stopped_)
        abort_step();
}

void stream_state::changed()
{
    changed_.cancel();
}

void stream_state::room_made()
{
    if (ready_.has_ended())
        stop();
    changed();
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

void stream_state::fill(connection& from, std::size_t frame_rows, std::size_t from_row, std::size_t count)
{
    layout_->copies(frame_rows, from_row, filled_, count, copies_);
    place_->copy(from.frame.span(), filling_->memory.span(), copies_);
    filled_ += count;
}

void stream_state::hand_out()
{
    std::vector<tensor> tensors;
    for (std::size_t i = 0; i < layout_->tensors().size(); ++i) {
        auto const& spec = layout_->tensors()[i];
        std::vector<std::uint64_t> shape{filled_};
        shape.insert(shape.end(), spec.row_shape.begin(), spec.row_shape.end());
        auto const bytes = filling_->memory.span().subspan(layout_->offset(i), filled_ * layout_->row_size(i));
        tensors.push_back({spec.name, spec.type, std::move(shape), bytes});
    }
    auto const rows = std::exchange(filled_, 0);
    ready_.put(batch{pool_, std::move(filling_), rows, std::move(tensors), options_.stream});
}

// ---- the end ----

void stream_state::end_if_complete()
{
    if (stopped_ || turns_->waiting() > 0 || !std::ranges::all_of(sources_, &source::ended))
        return;
    if (filling_ && filled_ > 0 && !options_.drop_last)
        hand_out();
    ready_.end(asio::error::eof);
    stop();
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
