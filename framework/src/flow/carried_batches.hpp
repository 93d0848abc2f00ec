// SPDX-License-Identifier: Apache-2.0
//
// What was received and no operation has taken yet. No I/O.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "loan.hpp"

namespace gpurx::detail {

// Batches in stream order, none of them empty. Only a receive of an exact size carries more than one.
class carried_batches {
  public:
    [[nodiscard]] bool empty() const noexcept { return front_ == nullptr; }
    [[nodiscard]] std::size_t bytes() const noexcept { return empty() ? 0 : front_->bytes + bytes_behind_; }
    // Precondition: not empty. Whoever takes bytes off it gives it back when it has none left.
    [[nodiscard]] loan& front() const noexcept { return *front_; }
    [[nodiscard]] loan& back() const noexcept { return behind_.empty() ? *front_ : *behind_.back(); }
    [[nodiscard]] std::size_t count() const noexcept { return empty() ? 0 : 1 + behind_.size(); }

    // How many fragments the next `size` bytes lie in.
    [[nodiscard]] std::size_t pieces_of(std::size_t size) const noexcept
    {
        auto const in_front = std::min(size, front_->bytes);
        auto pieces = detail::pieces_of(*front_, in_front);
        size -= in_front;
        for (auto const& batch : behind_) {
            auto const here = std::min(size, batch->bytes);
            pieces += detail::pieces_of(*batch, here);
            size -= here;
        }
        return pieces;
    }

    // What those that were received for a loan will count as.
    [[nodiscard]] std::size_t gathered() const noexcept { return empty() ? 0 : gathered(*front_) + gathered_behind_; }

    // Room for one more. Throws std::bad_alloc.
    void make_room()
    {
        if (behind_.size() == behind_.capacity())
            behind_.reserve(2 * behind_.size() + 1);
    }
    // Precondition: make_room() was called, if this is not empty.
    void push(std::unique_ptr<loan> batch) noexcept
    {
        if (empty()) {
            front_ = std::move(batch);
        } else {
            note_behind(*batch);
            behind_.push_back(std::move(batch));
        }
    }
    // The same where the last one takes it in (detail::absorb).
    void absorb(loan& batch) noexcept
    {
        if (!behind_.empty())
            note_behind(batch);
        detail::absorb(back(), batch);
    }
    // Precondition: not empty.
    [[nodiscard]] std::unique_ptr<loan> pop() noexcept
    {
        auto first = std::move(front_);
        if (!behind_.empty()) {
            front_ = std::move(behind_.front());
            behind_.erase(behind_.begin());
            bytes_behind_ -= front_->bytes;
            gathered_behind_ -= gathered(*front_);
        }
        return first;
    }

  private:
    [[nodiscard]] static std::size_t gathered(loan const& batch) noexcept
    {
        return batch.account == nullptr && batch.use.load(std::memory_order_relaxed) == page_use::on_loan ? batch.charge
                                                                                                          : 0;
    }

    void note_behind(loan const& batch) noexcept
    {
        bytes_behind_ += batch.bytes;
        gathered_behind_ += gathered(batch);
    }

    std::unique_ptr<loan> front_;
    std::vector<std::unique_ptr<loan>> behind_;
    std::size_t bytes_behind_ = 0;
    std::size_t gathered_behind_ = 0;  // only the first one changes what it counts as
};

}  // namespace gpurx::detail
