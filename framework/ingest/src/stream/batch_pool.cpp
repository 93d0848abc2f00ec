// SPDX-License-Identifier: Apache-2.0
#include "batch_pool.hpp"

#include <algorithm>
#include <gpurx/ingest/tensor_stream.hpp>
#include <stdexcept>
#include <utility>

namespace gpurx::ingest {

namespace detail {

block::block(std::shared_ptr<place> where, std::size_t size) : memory{where, size}
{
    if (where->is_gpu())
        read_until = cuda_stream::on(where->gpu());
}

block::~block()
{
    if (read_until)
        finish(read_until);
}

void batch_pool::give_back(std::unique_ptr<block> memory, cuda_stream_ref after) noexcept
try {
    error_code code;
    if (memory->read_until)
        order_after(memory->read_until, after, code);
    std::scoped_lock const lock{mutex_};
    (code ? spoilt_ : blocks_).push_back(std::move(memory));
} catch (std::bad_alloc const&) {
    // No room to remember it: it is freed, once its stream has passed.
}

std::unique_ptr<block> batch_pool::take_beyond(std::size_t count) noexcept
{
    std::scoped_lock const lock{mutex_};
    if (blocks_.size() <= count)
        return nullptr;
    auto memory = std::move(blocks_.front());
    blocks_.pop_front();
    return memory;
}

}  // namespace detail

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

}  // namespace gpurx::ingest
