// SPDX-License-Identifier: Apache-2.0
//
// The ethtool family of generic netlink: ring, channel, feature and RSS settings. Requests and answers only; no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "netlink.hpp"

namespace gpurx::detail::ethtool {

enum class data_split : std::uint8_t {
    automatic = 0,  // the driver decides; also what a driver reports that knows no header split
    off = 1,
    on = 2,
};

struct rings {
    data_split split = data_split::automatic;    // in effect, not necessarily asked for
    std::optional<std::uint32_t> hds_threshold;  // nothing: the driver has no such setting

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
