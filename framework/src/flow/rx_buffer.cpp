// SPDX-License-Identifier: Apache-2.0
#include <gpurx/rx_buffer.hpp>
#include <utility>

#include "flow.hpp"

namespace gpurx {

rx_buffer::rx_buffer(std::shared_ptr<detail::flow> owner, detail::loan* record) noexcept
    : flow_{std::move(owner)}, loan_{record}
{}

rx_buffer& rx_buffer::operator=(rx_buffer&& other) noexcept
{
    if (this != &other) {
        release();
        flow_ = std::move(other.flow_);
        loan_ = std::exchange(other.loan_, nullptr);
    }
    return *this;
}

std::span<fragment const> rx_buffer::fragments() const noexcept
{
    return loan_ == nullptr ? std::span<fragment const>{} : loan_->remaining();
}

std::size_t rx_buffer::size() const noexcept
{
    return loan_ == nullptr ? 0 : loan_->bytes;
}

void rx_buffer::acquire(cuda_stream_ref stream) noexcept
{
    if (loan_ != nullptr)
        flow_->acquire(*loan_, stream);
}

void rx_buffer::release_after(cuda_stream_ref stream) noexcept
{
    if (loan_ == nullptr)
        return;
    flow_->give_back_after(std::unique_ptr<detail::loan>{std::exchange(loan_, nullptr)}, stream);
    flow_.reset();
}

void rx_buffer::release() noexcept
{
    if (loan_ == nullptr)
        return;
    flow_->give_back(std::unique_ptr<detail::loan>{std::exchange(loan_, nullptr)});
    flow_.reset();
}

}  // namespace gpurx
