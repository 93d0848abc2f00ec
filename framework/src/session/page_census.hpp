// SPDX-License-Identifier: Apache-2.0
//
// Which pages of a memory the program holds, each counted once however many loans have a part of it. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gpurx/rx_buffer.hpp>
#include <gpurx/views.hpp>

namespace gpurx::detail {

// What a program holds pages for. Where several apply, the first does.
enum class page_use : std::uint8_t { on_loan, parked, in_reads };
inline constexpr page_use page_uses[]{page_use::on_loan, page_use::parked, page_use::in_reads};

class page_census {
  public:
    // `page_size` is a power of two.
    page_census(memory_span memory, std::size_t page_size);

    // Notes the pages that the fragment lies in; none if it lies elsewhere. Returns how many were not noted yet.
    std::uint64_t note(fragment const& piece) noexcept;
    [[nodiscard]] std::uint64_t pages() const noexcept { return noted_.size(); }

  private:
    memory_span memory_;
    int page_shift_;
    std::vector<bool> noted_;
};

// What holds pages of a session: a flow. Safe while it receives and gives back.
class page_holder {
  public:
    page_holder() = default;
    page_holder(page_holder const&) = delete;
    page_holder& operator=(page_holder const&) = delete;

    // Notes all pages held for that; returns how many were not noted yet.
    [[nodiscard]] virtual std::uint64_t note_pages(page_use what, page_census& census) const noexcept = 0;

  protected:
    ~page_holder() = default;
};

}  // namespace gpurx::detail
