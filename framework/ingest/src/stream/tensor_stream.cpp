// SPDX-License-Identifier: Apache-2.0
#include <gpurx/cuda_stream.hpp>
#include <gpurx/ingest/tensor_stream.hpp>
#include <stdexcept>
#include <utility>

#include "stream_state.hpp"

namespace gpurx::ingest {

namespace detail {

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

std::shared_ptr<ready_batches> batches_of(std::shared_ptr<stream_state> const& stream) noexcept
{
    return {stream, &stream->ready()};
}

}  // namespace detail

// ---- batch ----

batch::batch() noexcept = default;

batch::batch(std::shared_ptr<detail::batch_pool> pool, std::unique_ptr<detail::block> memory, std::size_t rows,
             std::vector<tensor> tensors, cuda_stream_ref stream, shared_position position) noexcept
    : pool_{std::move(pool)},
      memory_{std::move(memory)},
      rows_{rows},
      tensors_{std::move(tensors)},
      stream_{stream},
      position_{std::move(position)}
{}

batch::batch(batch&& other) noexcept
    : pool_{std::move(other.pool_)},
      memory_{std::move(other.memory_)},
      rows_{std::exchange(other.rows_, 0)},
      tensors_{std::exchange(other.tensors_, {})},
      stream_{other.stream_},
      position_{std::move(other.position_)}
{}

batch& batch::operator=(batch&& other) noexcept
{
    if (this != &other) {
        release_after(stream_);
        pool_ = std::move(other.pool_);
        memory_ = std::move(other.memory_);
        rows_ = std::exchange(other.rows_, 0);
        tensors_ = std::exchange(other.tensors_, {});
        stream_ = other.stream_;
        position_ = std::move(other.position_);
    }
    return *this;
}

batch::~batch()
{
    release_after(stream_);
}

tensor const* batch::find(std::string_view name) const noexcept
{
    auto const found = std::ranges::find(tensors_, name, &tensor::name);
    return found == tensors_.end() ? nullptr : &*found;
}

tensor const& batch::operator[](std::string_view name) const
{
    if (auto const* const found = find(name))
        return *found;
    throw std::out_of_range{"no tensor of the batch is named " + std::string{name}};
}

stream_position batch::position() const
{
    return position_ ? *position_ : stream_position{};
}

void batch::release_after(cuda_stream_ref stream) noexcept
{
    if (memory_)
        pool_->give_back(std::move(memory_), stream);
    rows_ = 0;
    tensors_.clear();
    pool_.reset();
}

// ---- tensor_stream ----

tensor_stream::tensor_stream(executor_type executor, rx_session& session, tensor_stream_options options)
    : state_{std::make_shared<detail::stream_state>(std::move(executor), session, std::move(options))}
{
    state_->start();
}

tensor_stream::tensor_stream(tensor_stream&&) noexcept = default;

tensor_stream& tensor_stream::operator=(tensor_stream&& other) noexcept
{
    if (this != &other) {
        close();
        state_ = std::move(other.state_);
    }
    return *this;
}

tensor_stream::~tensor_stream()
{
    close();
}

tensor_stream::executor_type tensor_stream::get_executor() const noexcept
{
    return state_->executor();
}

std::vector<asio::ip::tcp::endpoint> tensor_stream::local_endpoints() const
{
    return state_->local_endpoints();
}

std::vector<source_error> tensor_stream::errors() const
{
    return state_->errors();
}

tensor_stream_stats tensor_stream::stats() const
{
    return state_->stats();
}

void tensor_stream::acknowledge(stream_position const& until)
{
    state_->acknowledge(until);
}

void tensor_stream::close() noexcept
{
    if (state_)
        state_->close();
}

}  // namespace gpurx::ingest
