// SPDX-License-Identifier: Apache-2.0
//
// How far one source is, across its connections: which frames are new. No input or output.
#pragma once

#include <cstdint>

namespace gpurx::ingest::detail {

class source_progress {
  public:
    enum class verdict {
        next,       // the one that is to come
        duplicate,  // was taken already: sent again after a connection ended
        gap,        // frames before it are missing
        after_end,  // the source has sent its last frame
    };

    source_progress() noexcept = default;
    // Where another process was: this frame is to come, or none.
    source_progress(std::uint64_t next, bool last_taken) noexcept : next_{next}, last_taken_{last_taken} {}

    [[nodiscard]] verdict judge(std::uint64_t sequence) const noexcept
    {
        if (sequence < next_)
            return verdict::duplicate;
        if (last_taken_)
            return verdict::after_end;
        return sequence == next_ ? verdict::next : verdict::gap;
    }

    // Precondition: judge() says next.
    void take(bool is_last) noexcept
    {
        ++next_;
        last_taken_ = is_last;
    }

    [[nodiscard]] std::uint64_t expected() const noexcept { return next_; }
    [[nodiscard]] bool last_taken() const noexcept { return last_taken_; }

  private:
    std::uint64_t next_ = 0;
    bool last_taken_ = false;
};

}  // namespace gpurx::ingest::detail
