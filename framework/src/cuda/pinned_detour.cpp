// SPDX-License-Identifier: Apache-2.0
#include "pinned_detour.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "allocations.hpp"
#include "stream_point.hpp"

namespace gpurx::detail::cuda {

namespace {

// Many small reads on a stream that stands still have a block each.
constexpr std::size_t smallest_detour = 4 << 10;
// That one copy crosses PCIe at full speed with, and as the staging of flows.
constexpr std::size_t largest_detour = 512 << 10;

}  // namespace

// At the start of its own memory.
struct pinned_detour::block {
    pinned_pool& home;
    std::size_t size;  // all of it
    block* next;

    static constexpr std::size_t head = 64;
    [[nodiscard]] std::byte* bytes() noexcept { return reinterpret_cast<std::byte*>(this) + head; }
};

pinned_detour::~pinned_detour()
{
    if (behind_ == nullptr)
        return;
    if (blocks_ == nullptr) {
        discard(behind_);
        return;
    }
    record(*behind_, stream_);
    when_passed(behind_, put_back, blocks_, waiting_for::pages);
}

void pinned_detour::put_back(void* blocks, error_code) noexcept
{
    for (auto* each = static_cast<block*>(blocks); each != nullptr;) {
        auto& home = each->home;
        auto const size = each->size;
        auto* const bytes = reinterpret_cast<std::byte*>(std::exchange(each, each->next));
        home.put(bytes, size);
    }
}

bool pinned_detour::take_block()
{
    static_assert(sizeof(block) <= block::head);
    auto const size = std::clamp(std::bit_ceil(expected_ + block::head), smallest_detour, largest_detour);
    if (behind_ == nullptr)
        behind_ = make_point(within_.context());
    if (behind_ == nullptr)
        throw std::bad_alloc{};
    std::byte* memory = nullptr;
    if (on_.pinned().take(size, memory) != CUDA_SUCCESS)
        return false;
    blocks_ = new (memory) block{.home = on_.pinned(), .size = size, .next = blocks_};
    capacity_ = size - block::head;
    expected_ -= std::min(expected_, capacity_);
    sent_ = 0;
    filled_ = 0;
    return true;
}

CUresult pinned_detour::copy(fragment piece, std::uint64_t destination)
{
    auto status = CUDA_SUCCESS;
    if (destination != destination_ + (filled_ - sent_)) {
        status = finish();
        destination_ = destination;
    }
    while (status == CUDA_SUCCESS && piece.size > 0) {
        if (filled_ == capacity_) {
            status = finish();
            if (status != CUDA_SUCCESS)
                break;
            if (!take_block())
                return copy_directly(piece, destination_);
        }
        auto const size = std::min(piece.size, capacity_ - filled_);
        std::memcpy(blocks_->bytes() + filled_, reinterpret_cast<std::byte const*>(piece.address), size);
        filled_ += size;
        piece.address += size;
        piece.size -= size;
    }
    return status;
}

CUresult pinned_detour::copy_directly(fragment const& piece, std::uint64_t destination) noexcept
{
    ++copies_;
    destination_ = destination + piece.size;
    return on_.calls().cuMemcpyAsync(destination, piece.address, piece.size, stream_);
}

CUresult pinned_detour::finish() noexcept
{
    auto const size = filled_ - sent_;
    if (size == 0)
        return CUDA_SUCCESS;
    ++copies_;
    auto const status = on_.calls().cuMemcpyHtoDAsync(destination_, blocks_->bytes() + sent_, size, stream_);
    destination_ += size;
    sent_ = filled_;
    return status;
}

}  // namespace gpurx::detail::cuda
