// SPDX-License-Identifier: Apache-2.0
//
// Counters by value. A snapshot: each counter is exact, but two of them may be read a moment apart.
#pragma once

#include <cstdint>

namespace gpurx {

struct stats {
    // Bytes by the way they came. Their sum is what the stream delivered.
    std::uint64_t device_bytes = 0;     // landed in the session's own device memory, untouched by a CPU (devmem)
    std::uint64_t resteered_bytes = 0;  // landed in the device memory of another session of this process
    std::uint64_t linear_bytes = 0;     // packets the NIC did not split: copied by the kernel (SCM_DEVMEM_LINEAR)
    std::uint64_t host_bytes = 0;       // arrived in ordinary host memory (a rule missed), or by transport copy

    std::uint64_t fragments = 0;  // pieces delivered, of every kind

    // Device pages on loan from the kernel, and the most there ever were. A page counts once for each fragment on it.
    std::uint64_t tokens_out = 0;
    std::uint64_t tokens_high_water = 0;
    // Tokens that cost the kernel a lock and an entry per fragment: all of them where it has no array tokens
    // (rx_session::explain()), else those of pages that were on loan already, as when packets share a page.
    std::uint64_t xarray_tokens = 0;

    std::uint64_t receive_calls = 0;       // recvmsg / recv system calls
    std::uint64_t release_calls = 0;       // setsockopt(SO_DEVMEM_DONTNEED) system calls
    std::uint64_t waits = 0;               // times an operation had to wait for the socket
    std::uint64_t loan_waits = 0;          // times an operation had to wait for loans or pages to come back
    std::uint64_t release_shortfalls = 0;  // tokens that were back already. Not zero: a fault; report it
    std::uint64_t release_failures = 0;  // setsockopt calls that failed; their pages stay out until the flow has ended

    // Times a flow was found waiting for data for lock_up_limit while no page was free for what arrives, and the
    // program held some. rx_session::explain() and options.notice say who.
    std::uint64_t starved = 0;
    // Bytes of host memory that flows have now for what does not land in device memory; a GPU's is pinned.
    std::uint64_t host_memory = 0;

    [[nodiscard]] constexpr std::uint64_t bytes() const noexcept
    {
        return device_bytes + resteered_bytes + linear_bytes + host_bytes;
    }
    friend bool operator==(stats const&, stats const&) = default;
};

}  // namespace gpurx
