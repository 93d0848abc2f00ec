// SPDX-License-Identifier: Apache-2.0
#include <gpurx/cuda_stream.hpp>
#include <gpurx/ingest/tensor_stream.hpp>

namespace gpurx::ingest::detail {

ready_batches::ready_batches(asio::any_io_executor const& executor, cuda_stream_ref filled_on, cuda_stream_ref consumer)
    : filled_on_{filled_on}, consumer_{consumer}, wake_{executor, asio::steady_timer::time_point::max()}
{}

bool ready_batches::take(error_code& code, batch& result) noexcept
{
    {
        std::scoped_lock const lock{mutex_};
        if (batches_.empty() && !end_)
            return false;
        if (batches_.empty()) {
            code = *end_;
            result.position_ = end_position_;
            if (end_seen_)
                return true;
            end_seen_ = true;
        } else {
            result = std::move(batches_.front());
            batches_.pop_front();
            if (result.empty())
                code = errc::epoch_ended;
            else
                ++taken_;
        }
        if (result.position_)
            position_ = result.position_;
    }
    if (!code && filled_on_ != cuda_stream_ref{})
        order_after(consumer_, filled_on_, code);
    if (code && !result.empty()) {
        result = {};
        end(code);
        drop();
    }
    on_room_();
    return true;
}

void ready_batches::put(batch next)
{
    std::scoped_lock const lock{mutex_};
    batches_.push_back(std::move(next));
    wake_.cancel();
}

void ready_batches::put_end_of_epoch(std::shared_ptr<stream_position const> position)
{
    batch empty;
    empty.position_ = std::move(position);
    put(std::move(empty));
}

void ready_batches::end(error_code why, std::shared_ptr<stream_position const> position) noexcept
{
    std::scoped_lock const lock{mutex_};
    if (!end_ || *end_ == asio::error::eof || why == asio::error::operation_aborted) {
        end_ = why;
        end_position_ = std::move(position);
    }
    wake_.cancel();
}

bool ready_batches::has_failed() const
{
    std::scoped_lock const lock{mutex_};
    return end_ && *end_ != asio::error::eof;
}

void ready_batches::drop() noexcept
{
    std::deque<batch> dropped;
    std::scoped_lock const lock{mutex_};
    dropped.swap(batches_);
}

std::size_t ready_batches::size() const
{
    std::scoped_lock const lock{mutex_};
    return batches_.size();
}

std::uint64_t ready_batches::taken() const
{
    std::scoped_lock const lock{mutex_};
    return taken_;
}

std::shared_ptr<stream_position const> ready_batches::position() const
{
    std::scoped_lock const lock{mutex_};
    return position_;
}

std::exception_ptr failure_of(std::shared_ptr<ready_batches> const& /*from*/, error_code code) noexcept
try {
    return std::make_exception_ptr(system_error{
        code, {.operation = "receive from", .object = "tensor stream", .kernel_message = {}, .advice = {}}});
} catch (...) {
    return std::current_exception();
}

}  // namespace gpurx::ingest::detail
