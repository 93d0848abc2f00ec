// SPDX-License-Identifier: Apache-2.0
//
// The settings that all sessions of an interface share: read, changed and put back as the journal has them.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device_journal.hpp"
#include "journal.hpp"
#include "nic/nic_device.hpp"

namespace gpurx::detail {

// The value that the NIC has now, in the journal's form; empty if it has no such setting.
[[nodiscard]] setting_value read_setting(nic_device& nic, setting what);
// "on", "3 RX, 3 TX, 0 combined"
[[nodiscard]] std::string describe(setting what, setting_value const& value);

// Sentences for people.
struct report {
    std::vector<std::string> done;
    std::vector<std::string> left;  // found changed by somebody else, or impossible to put back
};

// Queues that somebody else keeps out of RSS, and so has reserved for something: perhaps to lease them to a container
// that is still to come. `changes` are those of gpurx, whose own queues are out of RSS, too; `table` is the NIC's now,
// which has `rx_queues` queues.
[[nodiscard]] std::set<unsigned> reserved_queues(std::vector<setting_change> const& changes, setting_value const& table,
                                                 unsigned rx_queues);

// Turns header split on explicitly: a driver that reports it on without having been asked will not do for bind-rx. Some
// drivers allow it only together with rx-gro-hw, which is turned on then.
void split_headers(device_journal& log, nic_device& nic);

// Sets `what` to `wanted`, recorded first. What is so already stays unrecorded. Where somebody else has changed our
// value meanwhile, theirs is what the setting returns to at the end. Not for data_split and rss_table.
void change_setting(device_journal& log, nic_device& nic, setting what, setting_value const& wanted);

// Keeps RSS off the queues of all owners. `before`: the table before the channels were changed; empty: there is none.
void avoid_leased_queues(device_journal& log, nic_device& nic, setting_value const& before);
// The same after an owner has gone, while others remain: its queues may be used again.
void return_unleased_queues(device_journal& log, nic_device& nic, report& said);

// Puts every setting back, in reverse, where it still is what we made it. What could not be put back stays recorded.
void restore_settings(device_journal& log, nic_device& nic, report& said);

}  // namespace gpurx::detail
