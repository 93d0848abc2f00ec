// SPDX-License-Identifier: Apache-2.0
//
// The steps of a lease on a NIC, and how they are undone. The journal records each step before it is done, so that any
// that was reached can be undone: by its owner, or by a session that finds the owner dead.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device_journal.hpp"
#include "nic/flow_rule.hpp"
#include "nic/nic_device.hpp"
#include "settings.hpp"

namespace gpurx::detail {

struct acquisition {
    std::vector<unsigned> queues;
    bool array_tokens = false;  // the kernel has them
    std::unique_ptr<rx_binding> binding;
};

struct acquisition_request {
    unsigned rx_queues = 1;
    int dmabuf_fd = -1;
    std::uint32_t rx_page_size = 0;
};

// Header split, ntuple filters, queues (and channels for them), RSS away from them, the memory bound. Throws
// system_error in the middle of it; what was done is in the journal then. `notices` gets what a user should know.
[[nodiscard]] acquisition acquire(device_journal& log, nic_device& nic, lease_environment const& environment,
                                  acquisition_request const& request, std::vector<std::string>& notices);

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

// ---- undoing: nothing below throws; what cannot be undone is reported and, where it makes sense to try again, stays
// in the journal ----

// Removes one rule of the journal from the NIC: the rule with its id, if it still is this very rule; for a pending one,
// a rule that is equal and belongs to nobody else in the journal. Takes it out of the journal.
void remove_rule(device_journal& log, nic_device& nic, owner_key const& owner, flow_rule const& rule, report& said);

// Removes an owner's rules and RSS contexts. The memory may be unbound after this.
void undo_steering(device_journal& log, nic_device& nic, owner_key const& owner, report& said);

// Takes the owner out of the journal; its queues may be used again. With the last owner all settings go back to what
// they were. The owner's memory must have been unbound before.
void undo_lease(device_journal& log, nic_device& nic, owner_key const& owner, report& said);

// A NIC that is gone has taken its settings with it. True if so: the journal is empty then.
[[nodiscard]] bool forget_if_gone(device_journal& log, nic_device const& nic, report& said);

// Undoes what owners left that do not live any more, and what earlier attempts could not.
void undo_dead(device_journal& log, nic_device& nic, lease_environment const& environment, report& said);

}  // namespace gpurx::detail
