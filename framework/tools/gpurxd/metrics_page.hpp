// SPDX-License-Identifier: Apache-2.0
//
// Prometheus' text format of what gpurxd counts, and of the queues that it has given. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "figures.hpp"
#include "nic/families.hpp"

namespace gpurx::gpurxd {

// What the kernel says of an interface of which clients have queues.
struct interface_figures {
    std::string interface;
    std::uint64_t pages_in_flight = 0;                   // of the clients' pools, their pools' own reserves included
    std::vector<detail::netdev::rx_losses> losses = {};  // of the clients' queues
};

[[nodiscard]] std::string metrics_page(std::string_view version, figures const& counted,
                                       std::span<interface_figures const> seen);

}  // namespace gpurx::gpurxd
