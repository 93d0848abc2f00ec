// SPDX-License-Identifier: Apache-2.0
//
// The memory budget: how much of a session's memory the NIC's rings keep, and how receive buffers, loans and reads
// share the rest, so that none of them can take what another needs to go on. And which of several memories a flow is
// put on. The reasoning is in docs/memory-budget.md. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <gpurx/error.hpp>

#include "lease/session_nic.hpp"

namespace gpurx::detail {

// ---- rings: pages that are posted for packets to come, and that no flow gets to hold ----

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
// Advises on a ring that takes much of `memory`.
[[nodiscard]] std::string advice_on_tight_ring(ring_demand const& demand, std::string_view interface,
                                               std::size_t memory);

// ---- shares of receive buffers, loans and reads ----

struct budget_request {
    std::size_t memory = 0;     // bytes bound to the NIC
    std::size_t page_size = 0;  // bytes of one NIC page; 0 with transport copy
    unsigned max_flows = 0;     // > 0
    // Of all flows together, as the kernel counts; 0: half of what the rings leave.
    std::size_t receive_memory = 0;
    std::size_t loan_limit = 0;  // bytes on loan to one flow; 0: half of its share of what receive_memory leaves
    ring_demand rings = {};
    std::string_view interface = {};  // whose rings they are
};

struct budget {
    std::size_t receive_memory = 0;
    std::size_t share = 0;        // of one flow, as the kernel counts: whole pages per segment
    int receive_buffer_size = 0;  // the SO_RCVBUF that gives this share: the kernel doubles it
    std::size_t loan_limit = 0;
    std::size_t read_share = 0;  // of one flow: what reads of it may leave to wait for their streams

    friend bool operator==(budget const&, budget const&) = default;
};

// The least that lets a flow move: less, and one large segment fills the receive buffer.
[[nodiscard]] std::size_t smallest_share(std::size_t page_size) noexcept;

// Transport devmem. EINVAL for no flows; errc::memory_too_small, with numbers in why.advice: the memory cannot feed the
// rings and the flows.
[[nodiscard]] budget plan_budget(budget_request const& request, error_code& code, diagnostics& why);

// Transport copy: what has arrived waits in the kernel's own memory, so nothing can lock up, and receive buffers are
// the system's affair unless receive_memory is given. `smallest` is the least memory that lets max_flows flows move.
// The same errors.
[[nodiscard]] budget plan_copy_budget(budget_request const& request, std::size_t smallest, error_code& code,
                                      diagnostics& why);

// ---- choice among several memories, where the program leaves it open ----

struct part_condition {
    unsigned free_places = 0;  // for flows
    bool failed = false;       // its GPU is in error for good
};

// Takes turns among the parts that can take a flow.
class part_turns {
  public:
    // Nothing: none can.
    [[nodiscard]] std::optional<std::size_t> next(std::span<part_condition const> parts) noexcept;

  private:
    std::size_t turn_ = 0;
};

}  // namespace gpurx::detail
