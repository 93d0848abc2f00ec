// SPDX-License-Identifier: Apache-2.0
//
// The genetlink controller: a family's number and groups by its name, and which attributes a command accepts. Requests
// and answers only; no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "message.hpp"

namespace gpurx::detail::netlink {

struct family {
    std::uint16_t id = 0;
    std::map<std::string, std::uint32_t, std::less<>> groups;  // multicast groups by name

    friend bool operator==(family const&, family const&) = default;
};

[[nodiscard]] request family_request(std::string_view name);
// Nothing if the answer holds no number.
[[nodiscard]] std::optional<family> read_family(attributes const& answer);

// What the kernel accepts as the value of an attribute, as far as it says.
struct attribute_rule {
    std::uint32_t type = 0;            // uapi::nlctrl::rule_type_u32 and others
    std::optional<std::uint64_t> max;  // of an unsigned number

    friend bool operator==(attribute_rule const&, attribute_rule const&) = default;
};
using attribute_rules = std::map<std::uint16_t, attribute_rule>;  // by the attribute's number

// Which attributes a command accepts, gathered over the many answers to one request.
[[nodiscard]] request policy_request(std::uint16_t family, std::uint8_t command);
class policy {
  public:
    void add(attributes const& answer);
    // The attributes of the command's request, at the top level.
    [[nodiscard]] attribute_rules accepted() const;

  private:
    std::optional<std::uint32_t> index_;                 // of the policy for the request
    std::map<std::uint32_t, attribute_rules> policies_;  // by their index
};

}  // namespace gpurx::detail::netlink
