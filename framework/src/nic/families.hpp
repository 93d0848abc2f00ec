// SPDX-License-Identifier: Apache-2.0
//
// The families of generic netlink for requests to a NIC. netdev: bind-rx, and the kernel's data on queues, page pools
// and drops. ethtool: ring, channel, feature and RSS settings. Requests and answers only; no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "netlink.hpp"

namespace gpurx::detail::netdev {

// An RX queue.
struct rx_queue {
    unsigned id = 0;
    std::optional<std::uint32_t> dmabuf;  // id of the binding it delivers into
    bool io_uring = false;                // serves io_uring zero copy
    bool xsk = false;                     // serves an AF_XDP socket
    bool lease = false;                   // leased to a virtual device

    [[nodiscard]] bool taken() const noexcept { return dmabuf || io_uring || xsk || lease; }
    friend bool operator==(rx_queue const&, rx_queue const&) = default;
};
// Returns a text that names the user of a taken queue.
[[nodiscard]] std::string user_of(rx_queue const& queue);

struct page_pool {
    std::uint64_t id = 0;                      // used once
    unsigned ifindex = 0;                      // 0: its device is gone, or it waits for its last pages
    std::optional<std::uint32_t> dmabuf = {};  // id of the binding its pages come from
    bool io_uring = false;                     // its pages come from a queue of io_uring
    std::uint64_t inflight = 0;                // pages that are not in the pool
    bool detached = false;                     // its queue is gone; it waits for its last pages

    friend bool operator==(page_pool const&, page_pool const&) = default;
};

struct bind_rx {
    unsigned ifindex = 0;
    std::span<unsigned const> queues;
    int dmabuf_fd = -1;
    std::uint32_t rx_page_size = 0;  // 0: the default
    // False: all sockets of the binding share the tokens. A session never sets it; only the kernel's benchmark does.
    std::optional<bool> autorelease = {};
};
// Returns whether a kernel with these attributes of bind-rx has array tokens. All kernels with autorelease have them,
// and use them by default. The number of the attribute does not suffice: no released kernel has it, and a later kernel
// may use the number for another attribute.
[[nodiscard]] bool has_array_tokens(netlink::attribute_rules const& accepted);
[[nodiscard]] netlink::request bind_rx_request(std::uint16_t family, bind_rx const& what);
// Returns the id of the binding.
[[nodiscard]] std::optional<std::uint32_t> read_binding(netlink::attributes const& answer);
// Returns the name of the attribute ("queues.id") of a bind-rx request that the kernel reported as wrong or missing;
// empty if it reported none.
[[nodiscard]] std::string bind_rx_attribute(netlink::bytes_view request, netlink::verdict const& said);

[[nodiscard]] netlink::request queues_request(std::uint16_t family, unsigned ifindex);
// Nothing for a TX queue.
[[nodiscard]] std::optional<rx_queue> read_rx_queue(netlink::attributes const& answer);

[[nodiscard]] netlink::request page_pools_request(std::uint16_t family);
[[nodiscard]] page_pool read_page_pool(netlink::attributes const& answer);

// Losses of an RX queue so far. Empty: the driver does not count them.
struct rx_losses {
    unsigned queue = 0;
    std::optional<std::uint64_t> allocation_failures;  // failed attempts to get a page, or another buffer
    std::optional<std::uint64_t> overruns;             // packets that found no buffer posted
    std::optional<std::uint64_t> drops;                // packets dropped by the NIC for any reason, overruns included

    friend bool operator==(rx_losses const&, rx_losses const&) = default;
};
[[nodiscard]] netlink::request queue_stats_request(std::uint16_t family, unsigned ifindex);
// Nothing for a TX queue.
[[nodiscard]] std::optional<rx_losses> read_rx_losses(netlink::attributes const& answer);

}  // namespace gpurx::detail::netdev

namespace gpurx::detail::ethtool {

enum class data_split : std::uint8_t {
    automatic = 0,  // the driver decides; drivers without header split report it too
    off = 1,
    on = 2,
};

struct rings {
    data_split split = data_split::automatic;     // in effect, not necessarily as requested
    std::optional<std::uint32_t> hds_threshold;   // nothing: the driver has no such setting
    std::optional<std::uint32_t> rx_frames = {};  // frames in the ring of an RX queue

    friend bool operator==(rings const&, rings const&) = default;
};

// A NIC has either combined channels, or RX and TX ones, or (rarely) both; the unused kinds have a maximum of 0.
struct channels {
    std::uint32_t rx = 0;
    std::uint32_t tx = 0;
    std::uint32_t combined = 0;
    std::uint32_t rx_max = 0;
    std::uint32_t tx_max = 0;
    std::uint32_t combined_max = 0;

    [[nodiscard]] std::uint32_t rx_queues() const noexcept { return rx + combined; }
    friend bool operator==(channels const&, channels const&) = default;
};

enum class feature : std::uint8_t { ntuple_filters, hardware_gro };

struct feature_state {
    bool active = false;
    bool changeable = false;

    friend bool operator==(feature_state const&, feature_state const&) = default;
};

// An RSS context other than the device's own.
struct rss_context {
    std::uint32_t id = 0;
    std::vector<std::uint32_t> table;  // a queue per hash value

    friend bool operator==(rss_context const&, rss_context const&) = default;
};

[[nodiscard]] netlink::request rings_request(std::uint16_t family, unsigned ifindex);
[[nodiscard]] rings read_rings(netlink::attributes const& answer);
[[nodiscard]] netlink::request set_data_split_request(std::uint16_t family, unsigned ifindex, data_split value);
[[nodiscard]] netlink::request set_hds_threshold_request(std::uint16_t family, unsigned ifindex, std::uint32_t value);
[[nodiscard]] netlink::request set_rx_ring_request(std::uint16_t family, unsigned ifindex, std::uint32_t frames);
// True if a notification says that this device's ring settings have changed.
[[nodiscard]] bool is_rings_change(netlink::generic_message const& notification, unsigned ifindex);

[[nodiscard]] netlink::request channels_request(std::uint16_t family, unsigned ifindex);
[[nodiscard]] channels read_channels(netlink::attributes const& answer);
// Sets the counts of the kinds that the NIC has; the maxima say which.
[[nodiscard]] netlink::request set_channels_request(std::uint16_t family, unsigned ifindex, channels const& value);

[[nodiscard]] netlink::request features_request(std::uint16_t family, unsigned ifindex);
[[nodiscard]] feature_state read_feature(netlink::attributes const& answer, feature which);
[[nodiscard]] netlink::request set_feature_request(std::uint16_t family, unsigned ifindex, feature which, bool on);

[[nodiscard]] netlink::request rss_contexts_request(std::uint16_t family, unsigned ifindex);
// Nothing for the device's own table.
[[nodiscard]] std::optional<rss_context> read_rss_context(netlink::attributes const& answer);

}  // namespace gpurx::detail::ethtool
