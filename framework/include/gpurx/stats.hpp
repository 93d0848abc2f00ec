// SPDX-License-Identifier: Apache-2.0
//
// Counters by value. A snapshot: each counter is exact, but two of them may be read a moment apart.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

// What one flow has of a session's pages. A page that several flows have a part of counts for one of them.
struct flow_pages {
    std::string connection;       // "10.0.0.1:4000 <- 10.0.0.2:5000"
    std::uint64_t on_loan = 0;    // as in pool_stats
    std::uint64_t parked = 0;     // as in pool_stats
    std::uint64_t in_reads = 0;   // as in pool_stats
    std::uint64_t in_socket = 0;  // bytes in its receive queues, as the kernel counts them; see pool_stats::in_sockets

    friend bool operator==(flow_pages const&, flow_pages const&) = default;
};

// Where the pages of a session's memory are (rx_session::pool_stats; docs/memory-budget.md says what to do about it).
struct pool_stats {
    std::uint64_t pages = 0;    // in all
    std::size_t page_size = 0;  // bytes

    // Every page is in exactly one of these: they add up to `pages`. What the program has and what the kernel has are
    // asked one after the other: a page that changes hands in between may be shown where it was.
    //
    // free: no pool of a queue has it; the NIC may take it at any time.
    // in_ring, in_queues: a pool has it, this process does not. The kernel does not tell such pages apart:
    //   in_ring: of them as many as the NIC's rings keep posted (ring_demand). A pool that runs dry cannot refill its
    //       rings: then it is the most they may have. A driver that posts more than that has the rest in in_queues. 0
    //       where ring_demand is not known.
    //   in_queues: the rest: in the receive queue of a socket (in or out of order, accepted or not; in_sockets says
    //       how much of it is this session's flows'), kept by the pool for the next packet, or with another process.
    //       With transport copy: being filled, or on its way to a GPU.
    // on_loan: in an rx_buffer that lives.
    // parked: given back, by a loan or a read, and waiting for the GPU stream that reads it.
    // in_reads: received for an async_read, or left over by one for the next, and not given back yet.
    std::uint64_t free = 0;
    std::uint64_t in_ring = 0;
    std::uint64_t in_queues = 0;
    std::uint64_t on_loan = 0;
    std::uint64_t parked = 0;
    std::uint64_t in_reads = 0;

    // At least so many pages the NIC's rings keep posted, by their size and the MTU when the session was opened;
    // empty: the driver does not tell the size, or transport copy.
    std::optional<std::uint64_t> ring_demand;
    // Bytes in the receive queues of this session's flows. The kernel counts whole pages and its own records with them,
    // and bytes that landed in host memory, so it is no number of pages; connections not yet accepted are not in it.
    std::uint64_t in_sockets = 0;

    // The most pages that were not free, of all looks at the pool: by the watchdog, explain() and pool_stats(). What
    // comes and goes between two looks is not seen.
    std::uint64_t high_water = 0;
    // How long no page was free and packets found none: from look to look of the watchdog, which looks four times in
    // lock_up_limit (at least each second) while an operation waits and loans or sockets hold something. Empty: the
    // driver does not count allocation failures, lock_up_limit is 0, or transport copy.
    std::optional<std::chrono::nanoseconds> dry_time;

    // Of the session's queues, since it was opened; empty: the driver does not count them, or transport copy.
    std::optional<std::uint64_t> allocation_failures;  // of the driver to get a page, or what else a packet needs
    std::optional<std::uint64_t> overruns;             // packets dropped as no buffer was posted (rx-hw-drop-overruns)
    std::optional<std::uint64_t> drops;                // packets the NIC dropped for any reason (rx-hw-drops)

    std::vector<flow_pages> flows;  // of the session, and of others in whose loans pages of it are

    friend bool operator==(pool_stats const&, pool_stats const&) = default;
};

}  // namespace gpurx
