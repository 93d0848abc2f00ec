// SPDX-License-Identifier: Apache-2.0
//
// The counters of gpurxd and of its clients' processes, and Prometheus' text of them. No I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/error.hpp>

#include "nic/families.hpp"
#include "policy.hpp"

namespace gpurx::gpurxd {

// The kind of request that was refused.
enum class request_kind : std::uint8_t {
    connect,
    open,
    steer,
    unsteer,
    message,
    probe,  // an open without memory, which gets nothing: gpurx-doctor asks so whether the policy allows it
};
inline constexpr std::size_t request_kinds = 6;

enum class refusal_reason : std::uint8_t {
    policy,      // the policy, a limit of it, or a port of somebody else's
    crowded,     // as many clients as there may be
    flows,       // as many rules as the client may have
    descriptor,  // none, or not of what it has to be
    elsewhere,   // of another network namespace
    order,       // asked before, or twice, or of what is not there
    protocol,    // no message of this version
    nic,         // what the kernel, the driver or the journal said
};
inline constexpr std::size_t refusal_reasons = 8;

[[nodiscard]] refusal_reason reason_of(request_kind what, error_code code) noexcept;

// A client that has queues.
struct client_metrics {
    std::string interface;
    std::uint32_t uid = 0;
    limits most;
    std::uint64_t memory = 0;  // bytes bound
    std::uint32_t dmabuf = 0;  // the binding
    std::uint32_t page_size = 0;
    std::vector<unsigned> queues;
    std::uint64_t rules = 0;

    friend bool operator==(client_metrics const&, client_metrics const&) = default;
};

struct daemon_metrics {
    std::uint64_t connections = 0;
    std::uint64_t rules_made = 0;
    std::uint64_t rules_taken_away = 0;
    std::array<std::array<std::uint64_t, refusal_reasons>, request_kinds> refusals{};
    std::vector<client_metrics> clients;

    friend bool operator==(daemon_metrics const&, daemon_metrics const&) = default;
};

// Statistics of the kernel for an interface of which clients have queues.
struct interface_metrics {
    std::string interface;
    std::uint64_t pages_in_flight = 0;                   // of the clients' pools, their pools' own reserves included
    std::vector<detail::netdev::rx_losses> losses = {};  // of the clients' queues
};

[[nodiscard]] std::string metrics_page(std::string_view version, daemon_metrics const& counted,
                                       std::span<interface_metrics const> seen);

}  // namespace gpurx::gpurxd
