// SPDX-License-Identifier: Apache-2.0
//
// Detects a server that is too slow. Pure: it counts time in samples, `looks_per_timeout` of them in
// fetch_options::timeout.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace gpurx::ingest::detail {

// So a stall is detected at most an eighth of its limit late.
inline constexpr unsigned looks_per_timeout = 8;

class stall_detector {
  public:
    // Kind of the awaited bytes. A header is too slow if it is not complete within the timeout, however many bytes, or
    // interim responses, have arrived. A body is measured by its speed.
    enum class waiting_for { nothing, header, body };
    enum class verdict { fine, silent, header_too_slow, body_too_slow };

    // `least`: bytes of a body in one timeout.
    explicit stall_detector(std::uint64_t least) noexcept : least_{least} {}

    void wait_for(waiting_for what, unsigned looks = looks_per_timeout) noexcept
    {
        what_ = what;
        header_limit_ = looks;
        header_looks_ = 0;
        silent_looks_ = 0;
    }
    // Call it once per sample. `arrived`: the connection's bytes so far, with those in the socket. `at_hand`: a
    // read could take bytes now, so the server is not the slow side.
    [[nodiscard]] verdict look(std::uint64_t arrived, bool at_hand) noexcept
    {
        auto const came = arrived - std::exchange(arrived_, arrived);
        came_in_body_.reset();
        if (what_ == waiting_for::nothing || at_hand) {
            silent_looks_ = 0;
            return verdict::fine;
        }
        if (what_ == waiting_for::header)
            return ++header_looks_ > header_limit_ ? verdict::header_too_slow : verdict::fine;
        came_in_body_ = came;
        silent_looks_ = came == 0 ? silent_looks_ + 1 : 0;
        if (silent_looks_ > looks_per_timeout)
            return verdict::silent;
        in_body_ += came;
        // Where nothing comes any more it is silence, and told so.
        if (++body_looks_ < looks_per_timeout || came == 0)
            return verdict::fine;
        measured_ = std::exchange(in_body_, 0) * looks_per_timeout / std::exchange(body_looks_, 0);
        return measured_ < least_ ? verdict::body_too_slow : verdict::fine;
    }
    // Of a body, between the last two looks; empty: none was waited for.
    [[nodiscard]] std::optional<std::uint64_t> came_in_body() const noexcept { return came_in_body_; }
    // Bytes of a body per timeout, when that was last measured.
    [[nodiscard]] std::uint64_t measured() const noexcept { return measured_; }

  private:
    waiting_for what_ = waiting_for::nothing;
    std::uint64_t least_;
    std::uint64_t arrived_ = 0;
    std::uint64_t measured_ = 0;
    std::uint64_t in_body_ = 0;
    std::optional<std::uint64_t> came_in_body_;
    unsigned header_limit_ = looks_per_timeout;
    unsigned silent_looks_ = 0;
    unsigned header_looks_ = 0;
    unsigned body_looks_ = 0;
};

}  // namespace gpurx::ingest::detail
