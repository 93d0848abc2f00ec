// SPDX-License-Identifier: Apache-2.0
#include "tensor_memory.hpp"

#include <boost/asio/io_context.hpp>
#include <gpurx/gather.hpp>
#include <utility>

namespace gpurx::ingest::detail {

place::place(int gpu) : gpu_{gpu}
{
    if (is_gpu())
        stream_ = cuda_stream::on(gpu);
}

void place::count(std::uint64_t bytes) noexcept
{
    auto const now = in_use_ += bytes;
    auto high = high_water_.load();
    while (high < now && !high_water_.compare_exchange_weak(high, now)) {
    }
}

void place::copy(memory_span from, memory_span to, std::span<row_copy const> which) const
{
    for (auto const& each : which) {
        auto const source = from.subspan(each.from, each.size);
        auto const target = to.subspan(each.to, each.size);
        fragment const piece{source.address(), source.size(), source.kind()};
        gather({&piece, 1}, target, stream());
    }
}

void finish(cuda_stream_ref stream) noexcept
try {
    asio::io_context own{1};
    async_wait(own.get_executor(), stream, [](error_code) {});
    own.run();
} catch (...) {
    // No descriptor left. The GPU has had its time: the caller waits for nothing longer than a copy.
}

tensor_memory::tensor_memory(std::shared_ptr<place> where, std::size_t size)
    : where_{std::move(where)}, bytes_{where_->is_gpu() ? buffer::on_gpu(where_->gpu(), size) : buffer::on_host(size)}
{
    where_->count(size);
}

tensor_memory::tensor_memory(tensor_memory&& other) noexcept
    : where_{std::move(other.where_)}, bytes_{std::exchange(other.bytes_, {})}
{}

tensor_memory& tensor_memory::operator=(tensor_memory&& other) noexcept
{
    std::swap(where_, other.where_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

tensor_memory::~tensor_memory()
{
    if (where_ == nullptr)
        return;
    where_->in_use_ -= bytes_.size();
    if (where_->is_gpu())
        finish(where_->stream());
}

// ---- batches ----

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

}  // namespace gpurx::ingest::detail
