// SPDX-License-Identifier: Apache-2.0
//
// Which packets the tap is to see. Values; no I/O.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lease/journal.hpp"

namespace gpurx::doctor::tap {

// TCP of one family between two ends, in both directions. What is absent (a port: 0) matches everything.
struct selection {
    bool v6 = false;
    std::optional<boost::asio::ip::address> local;
    std::uint16_t local_port = 0;
    std::optional<boost::asio::ip::address> remote;
    std::uint16_t remote_port = 0;

    friend bool operator==(selection const&, selection const&) = default;
    friend bool operator<(selection const& a, selection const& b)
    {
        return std::tie(a.v6, a.local, a.local_port, a.remote, a.remote_port) <
               std::tie(b.v6, b.local, b.local_port, b.remote, b.remote_port);
    }
};
using selections = std::set<selection>;

// What has this port at either end.
[[nodiscard]] selections of_port(std::uint16_t port);
// "LOCAL,REMOTE", each ADDRESS:PORT, [ADDRESS]:PORT, or with * in the place of either. Throws std::invalid_argument,
// which says what is wrong.
[[nodiscard]] selections of_flow(std::string_view text);
// What the rules of these sessions steer to them.
[[nodiscard]] selections of_sessions(std::vector<detail::journal_owner> const& owners);

// The same and more, in less: of each the local port, else the remote one, else its family.
[[nodiscard]] selections widened(selections const& chosen);

}  // namespace gpurx::doctor::tap
