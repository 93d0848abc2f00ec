// SPDX-License-Identifier: Apache-2.0
//
// Steering rules of TCP packets as values, and their conversion to and from the kernel's form (ethtool rxnfc). No I/O.
#pragma once

#include <linux/ethtool.h>

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpurx::detail {

// A match of TCP packets from `remote` to `local`. An absent member matches everything.
struct flow_match {
    bool v6 = false;                                // the family of the packets
    std::optional<boost::asio::ip::address> local;  // of that family, without scope
    std::uint16_t local_port = 0;
    std::optional<boost::asio::ip::tcp::endpoint> remote;  // address of that family, without scope

    friend bool operator==(flow_match const&, flow_match const&) = default;
};

enum class rule_target : std::uint8_t { queue, context };

struct flow_rule {
    flow_match match;
    rule_target kind = rule_target::queue;
    std::uint32_t target = 0;  // an RX queue, or an RSS context

    friend bool operator==(flow_rule const&, flow_rule const&) = default;
};

// A rule found on a NIC, perhaps of another program.
struct installed_rule {
    std::uint32_t id = 0;
    std::optional<flow_rule> rule;  // empty: not a form that gpurx makes
    std::optional<unsigned> queue;  // target, if it is a queue

    friend bool operator==(installed_rule const&, installed_rule const&) = default;
};

// Returns the address without its scope, which is not part of a packet, and as IPv4 if it is mapped into IPv6.
[[nodiscard]] boost::asio::ip::tcp::endpoint on_the_wire(boost::asio::ip::tcp::endpoint const& end);

// The match of one connection. IPv4 addresses mapped into IPv6 count as IPv4, as they do on the wire.
[[nodiscard]] flow_match match_connection(boost::asio::ip::tcp::endpoint const& local,
                                          boost::asio::ip::tcp::endpoint const& remote);
// Returns the matches of a listener: one, or two for a v6 listener on the unspecified address that accepts IPv4 too.
[[nodiscard]] std::vector<flow_match> match_listener(boost::asio::ip::tcp::endpoint const& local, bool also_v4);
// Returns the match and successively wider ones, for NICs with fewer features: both ends, the local end, the local
// port.
[[nodiscard]] std::vector<flow_match> widened(flow_match const& match);

// The places of a NIC's rules, if the driver leaves the choice to the caller. Taking and returning a place costs the
// same however many are taken.
class rule_places {
  public:
    rule_places() noexcept = default;
    rule_places(std::vector<std::uint32_t> const& used, std::uint32_t size);

    // Returns the last free place, because the first ones have the highest priority and people choose them by hand. For
    // a rule of one connection it returns the last free place in the first half, if any: that rule needs a higher
    // priority than the rule of a whole port. Empty if all are taken.
    [[nodiscard]] std::optional<std::uint32_t> last_free(bool of_connection) noexcept;
    void take(std::uint32_t place) noexcept;
    void give_back(std::uint32_t place) noexcept;

  private:
    [[nodiscard]] std::optional<std::uint32_t> last_free_before(std::uint32_t& end) const noexcept;

    std::vector<bool> taken_;
    std::uint32_t end_ = 0;       // from here on all are taken
    std::uint32_t half_end_ = 0;  // from here to the half all are taken
};

// "tcp4 10.0.0.2:4000 -> 10.0.0.1:5000"
[[nodiscard]] std::string to_string(flow_match const& match);

// An ETHTOOL_SRXCLSRLINS request without its location, and back.
[[nodiscard]] ethtool_rxnfc encode_rule(flow_rule const& rule);
[[nodiscard]] installed_rule decode_rule(ethtool_rxnfc const& answer);

}  // namespace gpurx::detail
