// SPDX-License-Identifier: Apache-2.0
//
// What a lease does to a NIC and how that is undone. Each step is recorded in the journal before it is done, so that
// whatever was reached can be undone, by its owner or by whoever finds that the owner is dead.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device_journal.hpp"
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
