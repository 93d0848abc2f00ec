// SPDX-License-Identifier: Apache-2.0
//
// Making rules and RSS contexts for an owner, each recorded in the journal before it is made.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device_journal.hpp"
#include "nic/flow_rule.hpp"
#include "nic/nic_device.hpp"

namespace gpurx::detail {

struct steer_target {
    rule_target kind = rule_target::queue;
    std::uint32_t number = 0;
};

// How wide a rule may be that is made because the NIC refuses a narrower one.
enum class rule_width : std::uint8_t {
    exact,    // as it was asked for: a wider one would bring packets along that belong elsewhere
    address,  // of one local address: for a port alone it would reach what goes through this host to others
    port,
};

// Makes a rule for `match`, or, if the NIC cannot match so much or lead there, the next best: first every target for
// one match, then the next wider match, up to `most`. Returns the rule that was made; one that the owner has already
// serves.
// `refused` gets a sentence for each that the NIC did not take. Throws system_error: EEXIST if another session has a
// rule for the same packets; what the last refusal was; what the NIC objects that no other rule would help against.
[[nodiscard]] flow_rule install_rule(device_journal& log, nic_device& nic, owner_key const& owner,
                                     flow_match const& match, std::span<steer_target const> targets,
                                     std::vector<std::string>& refused, rule_width most = rule_width::port);

// Makes an RSS context over `queues`. Throws system_error.
[[nodiscard]] std::uint32_t install_context(device_journal& log, nic_device& nic, owner_key const& owner,
                                            std::vector<unsigned> const& queues);

}  // namespace gpurx::detail
