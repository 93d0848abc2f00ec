// SPDX-License-Identifier: Apache-2.0
//
// An allocator that tells how much of its memory is in use.
#pragma once

#include <cstddef>
#include <memory>

namespace gpurx::test {

struct allocation_count {
    std::size_t alive = 0;
    std::size_t total = 0;
};

template <class T>
class counting_allocator {
  public:
    using value_type = T;

    explicit counting_allocator(allocation_count& count) noexcept : count_{&count} {}
    template <class U>
    counting_allocator(counting_allocator<U> const& other) noexcept : count_{&other.count()}
    {}

    [[nodiscard]] allocation_count& count() const noexcept { return *count_; }

    [[nodiscard]] T* allocate(std::size_t n)
    {
        ++count_->alive;
        ++count_->total;
        return std::allocator<T>{}.allocate(n);
    }
    void deallocate(T* memory, std::size_t n) noexcept
    {
        --count_->alive;
        std::allocator<T>{}.deallocate(memory, n);
    }

    template <class U>
    friend bool operator==(counting_allocator const& a, counting_allocator<U> const& b) noexcept
    {
        return &a.count() == &b.count();
    }

  private:
    allocation_count* count_;
};

}  // namespace gpurx::test
