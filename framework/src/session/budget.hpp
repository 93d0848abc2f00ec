// SPDX-License-Identifier: Apache-2.0
//
// The memory budget: how much of what the NIC's rings leave of a session's memory receive buffers may fill, loans may
// hold, and reads may leave to wait for GPU streams, so that none of them can take what another needs to go on. The
// reasoning is in docs/memory-budget.md.
#pragma once

#include <cstddef>
#include <string_view>

#include <gpurx/error.hpp>

#include "ring_demand.hpp"

namespace gpurx::detail {

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

}  // namespace gpurx::detail
