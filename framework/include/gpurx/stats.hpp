// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counters of flows, sessions and pages, by value.
///
/// Each counter of a snapshot is exact. Two counters of one snapshot may be read a moment apart.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpurx {

/// @brief Counters of a flow or of a session.
///
/// The sum of `device_bytes`, `resteered_bytes`, `linear_bytes` and `host_bytes` is the number of bytes that the stream
/// delivered.
struct stats {
    /// @brief Bytes that landed in the session's own device memory (`devmem`, `zcrx`).
    ///
    /// No CPU has touched them.
    std::uint64_t device_bytes = 0;
    /// @brief Bytes that landed in the device memory of another session of this process.
    std::uint64_t resteered_bytes = 0;
    /// @brief Bytes that the kernel copied, of packets that the NIC did not split.
    ///
    /// The kernel delivers them as `SCM_DEVMEM_LINEAR`.
    std::uint64_t linear_bytes = 0;
    /// @brief Bytes that arrived in ordinary host memory.
    ///
    /// They missed a rule, or came by transport `copy`.
    std::uint64_t host_bytes = 0;

    /// @brief Fragments delivered, of every kind.
    std::uint64_t fragments = 0;

    /// @brief Device pages on loan from the kernel, now.
    ///
    /// A page counts once for each fragment on it.
    std::uint64_t tokens_out = 0;
    /// @brief Most device pages on loan at one time.
    std::uint64_t tokens_high_water = 0;
    /// @brief Tokens that cost the kernel a lock and an entry per fragment.
    ///
    /// If the kernel has no array tokens (rx_session::explain()), these are all tokens. Otherwise they are tokens of
    /// pages that another connection has, as when their packets share a page.
    std::uint64_t xarray_tokens = 0;

    /// @brief System calls `recvmsg` and `recv`, and with transport `zcrx` `io_uring_enter`.
    std::uint64_t receive_calls = 0;
    /// @brief System calls `setsockopt(SO_DEVMEM_DONTNEED)`; 0 with transport `zcrx`.
    std::uint64_t release_calls = 0;
    /// @brief Times an operation waited for the socket.
    std::uint64_t waits = 0;
    /// @brief Times an operation waited for loans or pages to return.
    std::uint64_t loan_waits = 0;
    /// @brief Tokens that the kernel already had back. A value above 0 is a bug: report it.
    std::uint64_t release_shortfalls = 0;
    /// @brief Failed calls of `setsockopt`.
    ///
    /// Their pages do not return until the flow has ended.
    std::uint64_t release_failures = 0;

    /// @brief Times a flow starved because the program held pages.
    ///
    /// A flow starves if it waits for data for `lock_up_limit`, while no page is free and the program holds some.
    ///
    /// rx_session::explain() and `rx_session_options::notice` name the holders.
    std::uint64_t starved = 0;
    /// @brief Bytes of host memory that flows have now.
    ///
    /// The memory is for data that does not land in device memory. For a GPU it is pinned.
    std::uint64_t host_memory = 0;

    /// @brief Returns the number of bytes that the stream delivered.
    [[nodiscard]] constexpr std::uint64_t bytes() const noexcept
    {
        return device_bytes + resteered_bytes + linear_bytes + host_bytes;
    }
    friend bool operator==(stats const&, stats const&) = default;
};

/// @brief Pages of a session that one flow has.
///
/// A page shared by several flows counts for one of them.
struct flow_pages {
    /// @brief Addresses of the connection, such as "10.0.0.1:4000 <- 10.0.0.2:5000".
    std::string connection;
    /// @brief Pages in live rx_buffers, as `pool_stats::on_loan`.
    std::uint64_t on_loan = 0;
    /// @brief Pages that wait for a GPU stream, as `pool_stats::parked`.
    std::uint64_t parked = 0;
    /// @brief Pages of async_read(), as `pool_stats::in_reads`.
    std::uint64_t in_reads = 0;
    /// @brief Bytes in the flow's receive queues, as in pool_stats::in_sockets.
    std::uint64_t in_socket = 0;

    friend bool operator==(flow_pages const&, flow_pages const&) = default;
};

/// @brief Pages of a session's memory by place (rx_session::pool_stats()).
///
/// Each page is in exactly one place: `free`, `in_ring`, `in_queues`, `on_loan`, `parked` and `in_reads` add up to
/// `pages`. The session reads the program's pages and the kernel's pages one after the other. A page that moves in
/// between may be counted at its former place.
///
/// docs/memory-budget.md has advice on each place.
struct pool_stats {
    /// @brief Pages of the memory.
    std::uint64_t pages = 0;
    /// @brief Bytes of a page.
    std::size_t page_size = 0;

    /// @brief Pages outside the pools of all queues. The NIC may take them at any time.
    std::uint64_t free = 0;
    /// @brief Pages of a pool that the NIC's rings keep posted.
    ///
    /// 0 if ring_demand is not known.
    ///
    /// The kernel does not distinguish the pages of `in_ring` and of `in_queues`: a pool has them, and this process
    /// does not. If a pool runs dry, it cannot refill its rings; `in_ring` is then the most that they may have. If a
    /// driver posts more pages than `ring_demand`, the rest counts in `in_queues`.
    std::uint64_t in_ring = 0;
    /// @brief Other pages of a pool.
    ///
    /// - Pages in the receive queue of a socket: in or out of order, accepted or not. `in_sockets` has the bytes of
    ///   this session's flows.
    /// - Pages that the pool keeps for the next packet.
    /// - Pages of another process.
    /// - With transport `copy`: pages that are being filled, or whose copy to a GPU is not finished.
    std::uint64_t in_queues = 0;
    /// @brief Pages in live rx_buffers.
    std::uint64_t on_loan = 0;
    /// @brief Pages returned by loans or reads that still wait for a GPU stream.
    std::uint64_t parked = 0;
    /// @brief Pages of async_read() that have not returned.
    ///
    /// An operation has received them, or has left them over for the next.
    std::uint64_t in_reads = 0;

    /// @brief Least number of pages that the NIC's rings keep posted.
    ///
    /// The session computes it at its opening, from the size of the rings and the MTU.
    ///
    /// Empty if the driver does not report the size, or with transport `copy`.
    std::optional<std::uint64_t> ring_demand;
    /// @brief Bytes in the receive queues of this session's flows. Not a number of pages.
    ///
    /// The kernel counts whole pages, its own records, and bytes that landed in host memory. Connections that wait to
    /// be accepted are not included.
    std::uint64_t in_sockets = 0;

    /// @brief Most pages that were not free, in any sample of the pool.
    ///
    /// The watchdog, explain() and pool_stats() take samples. Samples miss changes between them.
    std::uint64_t high_water = 0;
    /// @brief Time in which no page was free and packets found none.
    ///
    /// The watchdog measures it between its samples.
    ///
    /// The watchdog samples four times in `lock_up_limit`, and at least each second. It samples while an operation
    /// waits and loans or sockets hold pages. Empty if the driver does not count allocation failures, if
    /// `lock_up_limit` is 0, or with transport `copy`.
    std::optional<std::chrono::nanoseconds> dry_time;

    /// @brief Failures of the driver to get a page or another resource of a packet.
    ///
    /// This counter and the next two cover the session's queues since the session was opened. They are empty if the
    /// driver does not count them, or with transport `copy`.
    std::optional<std::uint64_t> allocation_failures;
    /// @brief Packets dropped because no buffer was posted (rx-hw-drop-overruns).
    std::optional<std::uint64_t> overruns;
    /// @brief Packets that the NIC dropped for any reason (rx-hw-drops).
    std::optional<std::uint64_t> drops;

    /// @brief Flows of the session, and other flows whose loans have its pages.
    std::vector<flow_pages> flows;

    friend bool operator==(pool_stats const&, pool_stats const&) = default;
};

}  // namespace gpurx
