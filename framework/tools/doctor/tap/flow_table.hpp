// SPDX-License-Identifier: Apache-2.0
//
// The flows that the tap has seen: counts, and the order in which bytes came. No I/O.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "frame.hpp"

namespace gpurx::doctor::tap {

enum class arrival : std::uint8_t {
    in_order,
    behind_gap,     // bytes before these have not come
    out_of_order,   // fills a gap, and was sent before what came ahead of it
    retransmitted,  // fills a gap, sent later; or has come before
};

// The marks of a segment by which its time of sending is told.
struct send_mark {
    std::optional<std::uint32_t> clock;  // the sender's: its TCP timestamp
    std::optional<std::uint16_t> id;     // of IPv4, which many senders count up
};

// Tracks the sequence numbers of one direction of a flow.
class sequence_tracker {
  public:
    // Nothing comes again sooner after it was missed: no more than 3 ms, which is so by default.
    void set_round_trip(moment time) noexcept { soon_ = std::min(time, soon_); }

    // Bytes [sequence, sequence + size). What was sent first is told by the sender's clock; where it has not gone on,
    // by the ids, if those of this flow count up; else what fills a gap sooner than it could be sent again counts as
    // out of order. What is before the first segment seen, and what asks whether this end is still there, is in order.
    [[nodiscard]] arrival take(std::uint32_t sequence, std::uint32_t size, send_mark const& sent, moment now);
    // The receiver has everything before `sequence`. Returns how many gaps it has filled with what was not seen here.
    unsigned acknowledged(std::uint32_t sequence);

    // Bytes that have not come.
    [[nodiscard]] std::uint64_t missing() const noexcept;

  private:
    struct gap {
        std::uint64_t begin;
        std::uint64_t end;
        moment seen;
        send_mark sent;  // what came behind it
    };
    void open(gap const& one);
    // Takes [begin, end) out of the gaps. Returns the first that had some of it.
    std::optional<gap> fill(std::uint64_t begin, std::uint64_t end);
    [[nodiscard]] bool was_sent_later(send_mark const& sent, moment now, gap const& than) const noexcept;
    void watch_ids(send_mark const& sent) noexcept;
    [[nodiscard]] std::uint64_t unwrap(std::uint32_t sequence) const noexcept;

    moment soon_ = std::chrono::milliseconds{3};
    std::optional<std::uint16_t> last_id_;  // of what came in order
    unsigned counted_ids_ = 0;              // so many in a row counted up
    bool started_ = false;
    std::uint64_t first_ = 0;
    std::uint64_t next_ = 0;
    std::vector<gap> gaps_;  // by position; 64 at most: of more, the first are forgotten
};

struct flow_key {
    socket_end local;
    socket_end remote;

    friend auto operator<=>(flow_key const&, flow_key const&) = default;
};

// Counts since the tap was opened, of what came in unless it says otherwise. A packet is what the kernel makes of those
// on the wire: with hardware GRO or GRO up to 64 KiB.
struct flow_counts {
    std::uint64_t packets = 0;  // with payload
    std::uint64_t bytes = 0;    // of payload
    std::uint64_t gaps = 0;     // packets before which bytes were missing
    std::uint64_t out_of_order = 0;
    std::uint64_t retransmitted = 0;
    std::uint64_t unsplit = 0;        // packets of which payload lies in memory that the host can read
    std::uint64_t unsplit_bytes = 0;  // all payload of these
    std::uint64_t unseen = 0;         // gaps that the receiver had not: the tap missed what it has
    std::uint64_t missing = 0;        // bytes that are missing now
    std::uint64_t sent = 0;           // packets that went out
    std::uint64_t window = 0;         // bytes that this end last offered to take
    bool scaled = false;              // the window is true; else the header's: its scale is said at the beginning only
    moment first{};
    moment last{};
};

class flow_table {
  public:
    static constexpr std::size_t most_flows = 4096;

    void take(segment const& what, bool outgoing, moment now);

    [[nodiscard]] std::map<flow_key, flow_counts> const& flows() const noexcept { return counts_; }
    // Packets of flows for which there was no room.
    [[nodiscard]] std::uint64_t others() const noexcept { return others_; }

  private:
    struct flow_state {
        sequence_tracker order;
        std::optional<std::uint8_t> scale;  // of the windows that this end offers
        std::optional<moment> asked;        // this end sent its SYN, and has no answer yet
    };
    static void take_incoming(segment const& what, moment now, flow_counts& counts, flow_state& state);
    static void take_outgoing(segment const& what, moment now, flow_counts& counts, flow_state& state);

    std::map<flow_key, flow_counts> counts_;
    std::map<flow_key, flow_state> states_;
    std::uint64_t others_ = 0;
};

}  // namespace gpurx::doctor::tap
