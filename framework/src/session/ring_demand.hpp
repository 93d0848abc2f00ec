// SPDX-License-Identifier: Apache-2.0
//
// How much of a memory the NIC's rings keep posted for packets to come: bytes that no flow ever gets to hold, however
// idle the NIC is. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lease/session_nic.hpp"

namespace gpurx::detail {

// Of all queues of a session. A lower bound: drivers round up, and keep some pages for recycling besides.
struct ring_demand {
    std::uint64_t frames = 0;         // that the ring of a queue has room for; 0: the driver does not say
    std::size_t bytes_per_frame = 0;  // of whole pages, or of a power of two above the MTU where that is more
    std::uint64_t queues = 0;

    [[nodiscard]] std::size_t bytes() const noexcept;
    // More than a quarter of the memory: worth a sentence.
    [[nodiscard]] bool is_tight(std::size_t memory) const noexcept;
    // The most frames, a power of two, with which the rings take no more than `bytes`; empty: not even one fits.
    [[nodiscard]] std::optional<std::uint64_t> frames_within(std::size_t bytes) const noexcept;

    friend bool operator==(ring_demand const&, ring_demand const&) = default;
};

// `page_size` in bytes.
[[nodiscard]] ring_demand demand_of(nic_ring const& ring, std::size_t queues, std::size_t page_size) noexcept;
// Of a NIC that has the memory.
[[nodiscard]] ring_demand rings_of(session_nic const& nic);

// For people: "the ring of dms0 keeps at least 512 KiB of it posted (128 frames of 4 KiB)".
[[nodiscard]] std::string describe(ring_demand const& demand, std::string_view interface);
// What to do about a ring that takes much of `memory`.
[[nodiscard]] std::string advice_on_tight_ring(ring_demand const& demand, std::string_view interface,
                                               std::size_t memory);

}  // namespace gpurx::detail
