// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

namespace gpurx::detail {

// A list that is filled and emptied over and over, and keeps its room. A loop may write its elements at end() and
// behind it, where there is room, and say at last how far it got: push_back() looks for room, and stores where the list
// ends, with each of them.
template <class T>
class reused_list {
  public:
    // Room for `count` elements in all. Moves them, as push_back() may.
    void reserve(std::size_t count)
    {
        if (room_ < count)
            grow(count);
    }
    void push_back(T const& element)
    {
        if (size_ == room_)
            grow(2 * room_ + 1);
        slots_[size_++] = element;
    }
    // What was written up to there belongs to the list now.
    void extend_to(T const* end) noexcept { size_ = static_cast<std::size_t>(end - begin()); }
    void clear() noexcept { size_ = 0; }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    // So many more can be appended before it moves.
    [[nodiscard]] std::size_t spare_room() const noexcept { return room_ - size_; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] T* begin() noexcept { return slots_.get(); }
    [[nodiscard]] T const* begin() const noexcept { return slots_.get(); }
    [[nodiscard]] T* end() noexcept { return begin() + size_; }
    [[nodiscard]] T const* end() const noexcept { return begin() + size_; }

  private:
    void grow(std::size_t room)
    {
        auto larger = std::make_unique_for_overwrite<T[]>(room);
        std::copy(begin(), end(), larger.get());
        slots_ = std::move(larger);
        room_ = room;
    }

    std::unique_ptr<T[]> slots_;
    std::size_t room_ = 0;
    std::size_t size_ = 0;
};

}  // namespace gpurx::detail
