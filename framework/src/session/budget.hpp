// SPDX-License-Identifier: Apache-2.0
//
// The memory budget: the part of a session's memory that the NIC's rings keep, and the shares of receive buffers, loans
// and reads. Each share is separate, so none can block another. Also the choice among several memories for a flow.
// docs/memory-budget.md has the reasoning. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/error.hpp>

#include "lease/session_nic.hpp"

namespace gpurx::detail {

// ---- rings: pages that are posted for packets to come, and that no flow gets to hold ----

// The demand of all queues of a session. A lower bound: drivers round up, and also keep some pages for recycling.
struct ring_demand {
    std::uint64_t frames = 0;         // capacity of a queue's ring; 0: the driver does not report it
    std::size_t bytes_per_frame = 0;  // whole pages, or a power of two above the MTU if that is more
    std::uint64_t queues = 0;

    [[nodiscard]] std::size_t bytes() const noexcept;
    // Returns whether the rings take more than a quarter of the memory; the session then gives a notice.
    [[nodiscard]] bool is_tight(std::size_t memory) const noexcept;
    // Returns the largest power of two of frames with which the rings take at most `bytes`; empty if not even one frame
    // fits.
    [[nodiscard]] std::optional<std::uint64_t> frames_within(std::size_t bytes) const noexcept;

    friend bool operator==(ring_demand const&, ring_demand const&) = default;
};

// `page_size` in bytes.
[[nodiscard]] ring_demand demand_of(nic_ring const& ring, std::size_t queues, std::size_t page_size) noexcept;
// Returns the demand of a NIC that has the memory.
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
    // Bytes of all flows together, as the kernel counts; 0: half of the memory that the rings leave.
    std::size_t receive_memory = 0;
    std::size_t loan_limit = 0;  // bytes on loan to one flow; 0: half of its share of the rest
    ring_demand rings = {};
    std::string_view interface = {};  // interface of the rings
    // Queues that have a part of the memory each, transport zcrx. A flow may be on any of them, so that each part has
    // room for all flows.
    std::size_t parts = 1;
};

// Cuts `memory` bytes into `count` parts of whole pages; the last has the rest. Their offsets, or none if a part would
// be empty.
[[nodiscard]] std::vector<std::size_t> offsets_of_parts(std::size_t memory, std::size_t page_size, std::size_t count);

struct budget {
    std::size_t receive_memory = 0;
    std::size_t share = 0;        // of one flow, as the kernel counts: whole pages per segment
    int receive_buffer_size = 0;  // the SO_RCVBUF that gives this share: the kernel doubles it
    std::size_t loan_limit = 0;
    std::size_t read_share = 0;  // bytes of one flow's reads that may wait for their streams

    friend bool operator==(budget const&, budget const&) = default;
};

// Returns the least share with which a flow makes progress. With less, one large segment fills the receive buffer.
[[nodiscard]] std::size_t smallest_share(std::size_t page_size) noexcept;

// Plans the budget of transport devmem. Errors: EINVAL: no flows. errc::memory_too_small, with numbers in why.advice:
// the memory is too small for the rings and the flows.
[[nodiscard]] budget plan_budget(budget_request const& request, error_code& code, diagnostics& why);

// Plans the budget of transport copy. Arrived bytes wait in the kernel's own memory, so flows cannot lock up. The
// system sizes receive buffers unless receive_memory is set. `smallest` is the least memory with which max_flows flows
// make progress. The same errors.
[[nodiscard]] budget plan_copy_budget(budget_request const& request, std::size_t smallest, error_code& code,
                                      diagnostics& why);

// ---- choice among several memories, where the program leaves it open ----

struct part_condition {
    unsigned free_places = 0;  // for flows
    bool failed = false;       // its GPU is in a permanent error state
};

// Chooses in turn among the parts that can take a flow.
class part_turns {
  public:
    // Returns an empty optional if no part can take a flow.
    [[nodiscard]] std::optional<std::size_t> next(std::span<part_condition const> parts) noexcept;

  private:
    std::size_t turn_ = 0;
};

}  // namespace gpurx::detail
