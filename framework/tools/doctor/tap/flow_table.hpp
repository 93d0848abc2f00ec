// SPDX-License-Identifier: Apache-2.0
//
// What the tap has seen, by flow. No I/O.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "arrivals.hpp"
#include "frame.hpp"

namespace gpurx::doctor::tap {

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

    [[nodiscard]] std::map<flow_key, flow_counts> const& flows() const noexcept { return shown_; }
    // Packets of flows for which there was no room.
    [[nodiscard]] std::uint64_t others() const noexcept { return others_; }

  private:
    struct hidden {
        arrivals order;
        std::optional<std::uint8_t> scale;  // of the windows that this end offers
        std::optional<moment> asked;        // this end sent its SYN, and has no answer yet
    };
    static void take_incoming(segment const& what, moment now, flow_counts& counts, hidden& state);
    static void take_outgoing(segment const& what, moment now, flow_counts& counts, hidden& state);

    std::map<flow_key, flow_counts> shown_;
    std::map<flow_key, hidden> hidden_;
    std::uint64_t others_ = 0;
};

}  // namespace gpurx::doctor::tap
