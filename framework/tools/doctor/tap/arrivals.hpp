// SPDX-License-Identifier: Apache-2.0
//
// The order in which the bytes of one direction of a flow came. No I/O.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace gpurx::doctor::tap {

using moment = std::chrono::nanoseconds;  // since the epoch

enum class arrival : std::uint8_t {
    in_order,
    behind_gap,     // bytes before these have not come
    out_of_order,   // fills a gap, and was sent before what came ahead of it
    retransmitted,  // fills a gap, sent later; or has come before
};

// What a segment says of when it was sent.
struct departure {
    std::optional<std::uint32_t> clock;  // the sender's: its TCP timestamp
    std::optional<std::uint16_t> id;     // of IPv4, which many senders count up
};

class arrivals {
  public:
    // Nothing comes again sooner after it was missed: no more than 3 ms, which is so by default.
    void set_round_trip(moment time) noexcept { soon_ = std::min(time, soon_); }

    // Bytes [sequence, sequence + size). What was sent first is told by the sender's clock; where it has not gone on,
    // by the ids, if those of this flow count up; else what fills a gap sooner than it could be sent again counts as
    // out of order. What is before the first segment seen, and what asks whether this end is still there, is in order.
    [[nodiscard]] arrival take(std::uint32_t sequence, std::uint32_t size, departure const& sent, moment now);
    // The receiver has everything before `sequence`. Returns how many gaps it has filled with what was not seen here.
    unsigned acknowledged(std::uint32_t sequence);

    // Bytes that have not come.
    [[nodiscard]] std::uint64_t missing() const noexcept;

  private:
    struct gap {
        std::uint64_t begin;
        std::uint64_t end;
        moment seen;
        departure sent;  // what came behind it
    };
    void open(gap const& one);
    // Takes [begin, end) out of the gaps. Returns the first that had some of it.
    std::optional<gap> fill(std::uint64_t begin, std::uint64_t end);
    [[nodiscard]] bool was_sent_later(departure const& sent, moment now, gap const& than) const noexcept;
    void watch_ids(departure const& sent) noexcept;
    [[nodiscard]] std::uint64_t unwrap(std::uint32_t sequence) const noexcept;

    moment soon_ = std::chrono::milliseconds{3};
    std::optional<std::uint16_t> last_id_;  // of what came in order
    unsigned counted_ids_ = 0;              // so many in a row counted up
    bool started_ = false;
    std::uint64_t first_ = 0;
    std::uint64_t next_ = 0;
    std::vector<gap> gaps_;  // by position; 64 at most: of more, the first are forgotten
};

}  // namespace gpurx::doctor::tap
