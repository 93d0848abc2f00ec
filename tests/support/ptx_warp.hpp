// SPDX-License-Identifier: Apache-2.0
//
// What a block and its warps are while they run: for the parts of the machine (ptx_execution.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ptx_arithmetic.hpp"
#include "ptx_memory.hpp"

namespace ptx::inside {

using lane_mask = std::uint32_t;

constexpr lane_mask bit_of(unsigned lane)
{
    return lane_mask{1} << lane;
}

// Calls `body(lane)` for each lane of the mask.
template <class Body>
void for_lanes(lane_mask mask, Body body)
{
    for (; mask != 0; mask &= mask - 1)
        body(static_cast<unsigned>(std::countr_zero(mask)));
}

// A warp's registers are many, and most launches short: a thread keeps those of its last ones. What they hold counts as
// never written.
class register_file {
  public:
    register_file() = default;
    explicit register_file(std::size_t count)
    {
        if (!spare().empty()) {
            values_ = std::move(spare().back());
            spare().pop_back();
        }
        if (values_.size() < count)
            values_.resize(count);
    }
    register_file(register_file&&) noexcept = default;
    register_file& operator=(register_file&& other) noexcept
    {
        std::swap(values_, other.values_);
        return *this;
    }
    ~register_file()
    {
        if (!values_.empty() && spare().size() < 64)
            spare().push_back(std::move(values_));
    }
    lanes& operator[](std::size_t index) { return values_[index]; }
    lanes const& operator[](std::size_t index) const { return values_[index]; }

  private:
    static std::vector<std::vector<lanes>>& spare()
    {
        thread_local std::vector<std::vector<lanes>> kept;
        return kept;
    }
    std::vector<lanes> values_;
};

struct warp {
    unsigned block = 0;
    unsigned index = 0;  // in the block
    lane_mask first_lanes = 0;
    lane_mask live = 0;
    lane_mask waiting = 0;  // for other lanes, while they have parted
    bool parted = false;
    bool at_barrier = false;
    std::size_t at = 0;                           // of all, unless they have parted
    std::array<std::size_t, warp_lanes> at_of{};  // of each then
    register_file registers;
    std::vector<lane_mask> written;  // by register
    // Loads that come one after the other, as on a GPU that starts instructions in their order: `time` passes when an
    // instruction needs what a load brings.
    std::vector<std::uint32_t> ready;  // by register
    std::uint32_t time = 0;
    std::uint32_t loads_in_series = 0;
    std::uint64_t instructions = 0;

    [[nodiscard]] bool over() const { return live == 0; }
    [[nodiscard]] bool can_go() const { return live != 0 && !at_barrier; }
};

struct block {
    unsigned index = 0;
    shared_memory shared;
    std::vector<warp> warps;
};

}  // namespace ptx::inside
