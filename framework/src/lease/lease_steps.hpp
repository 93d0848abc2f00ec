// SPDX-License-Identifier: Apache-2.0
//
// The steps of a lease on a NIC, and their undoing. The journal records each step before it is made. So the owner can
// undo every step, or a session that finds the owner dead.
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
    std::span<memory_part const> parts = {};  // by io_uring: one for each queue
};

// Sets header split, ntuple filters, queues (and channels for them), moves RSS away from them, and binds the memory. If
// it throws system_error, the journal has the steps made so far. It adds notices for the user to `notices`.
[[nodiscard]] acquisition acquire(device_journal& log, nic_device& nic, lease_environment const& environment,
                                  acquisition_request const& request, std::vector<std::string>& notices);

struct steer_target {
    rule_target kind = rule_target::queue;
    std::uint32_t number = 0;
};

// Limit of a wider rule, if the NIC refuses a narrower one.
enum class rule_width : std::uint8_t {
    exact,    // as requested: a wider rule would match packets of others
    address,  // one local address: a rule for a port alone would match forwarded packets
    port,
};

// Makes a rule for `match`. If the NIC does not support the match or the target, makes the next best rule: first with
// every target for one match, then with the next wider match, up to `most`. Returns the rule. A rule that the owner
// already has is sufficient. Adds a sentence to `refused` for each rule that the NIC refuses. Throws system_error:
// EEXIST if another session has a rule for the same packets; the last refusal; an error of the NIC that another rule
// would not avoid.
[[nodiscard]] flow_rule install_rule(device_journal& log, nic_device& nic, owner_key const& owner,
                                     flow_match const& match, std::span<steer_target const> targets,
                                     std::vector<std::string>& refused, rule_width most = rule_width::port);

// Makes an RSS context over `queues`. Throws system_error.
[[nodiscard]] std::uint32_t install_context(device_journal& log, nic_device& nic, owner_key const& owner,
                                            std::vector<unsigned> const& queues);

// ---- undoing: no function below throws; a step that cannot be undone is reported and, if a retry may succeed, stays
// in the journal ----

// Removes one rule of the journal from the NIC and from the journal. It removes the rule with its id, if that is still
// the same rule. For a pending rule it removes an equal rule that has no other owner in the journal.
void remove_rule(device_journal& log, nic_device& nic, owner_key const& owner, flow_rule const& rule, report& said);

// Removes an owner's rules and RSS contexts. The memory may be unbound after this.
void undo_steering(device_journal& log, nic_device& nic, owner_key const& owner, report& said);

// Removes the owner from the journal; its queues may be used again. With the last owner it restores all settings. The
// owner's memory must already be unbound.
void undo_lease(device_journal& log, nic_device& nic, owner_key const& owner, report& said);

// Returns true if the NIC is gone, and with it its settings. The journal is then empty.
[[nodiscard]] bool forget_if_gone(device_journal& log, nic_device const& nic, report& said);

// Undoes changes of dead owners, and changes that earlier attempts could not undo.
void undo_dead(device_journal& log, nic_device& nic, lease_environment const& environment, report& said);

}  // namespace gpurx::detail
