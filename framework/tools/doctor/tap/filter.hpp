// SPDX-License-Identifier: Apache-2.0
//
// The selection of packets for the tap, and its program of the kernel's classic BPF. No I/O.
#pragma once

#include <linux/filter.h>

#include <boost/asio/ip/address.hpp>
#include <cstddef>
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

// The flows with this port at either end.
[[nodiscard]] selections of_port(std::uint16_t port);
// "LOCAL,REMOTE", each ADDRESS:PORT, [ADDRESS]:PORT, or with * in the place of either. Throws std::invalid_argument,
// which says what is wrong.
[[nodiscard]] selections of_flow(std::string_view text);
// The flows that the rules of these sessions steer to them.
[[nodiscard]] selections of_sessions(std::vector<detail::journal_owner> const& owners);

// The same and more, in less: of each the local port, else the remote one, else its family.
[[nodiscard]] selections widened(selections const& chosen);

// The longest program that the kernel takes.
inline constexpr std::size_t longest_program = 4096;

struct filter {
    std::vector<sock_filter> program;
    bool widened = false;  // the selections did not fit: it lets more through, but no less
};

// For Ethernet frames. Of a TCP packet that is chosen it lets through the headers and one byte of the payload: that
// comes where payload lies in memory that the host can read, and tells packets that the NIC did not split. Of all
// others nothing. IPv4 fragments but the first, IPv6 with extension headers and frames with a VLAN tag inside are not
// chosen. Throws std::length_error if it does not fit even so.
[[nodiscard]] filter make_filter(selections const& chosen);

}  // namespace gpurx::doctor::tap
