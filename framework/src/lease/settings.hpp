// SPDX-License-Identifier: Apache-2.0
//
// Reads, changes and restores the settings that all sessions of an interface share, with the journal.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device_journal.hpp"
#include "journal.hpp"
#include "nic/nic_device.hpp"

namespace gpurx::detail {

// Returns the NIC's present value, in the journal's form; empty if the NIC has no such setting.
[[nodiscard]] setting_value read_setting(nic_device& nic, setting what);
// "on", "3 RX, 3 TX, 0 combined"
[[nodiscard]] std::string describe(setting what, setting_value const& value);

// Sentences for people.
struct report {
    std::vector<std::string> done;
    std::vector<std::string> left;  // changed by another program, or impossible to restore
};

// Returns queues that another program keeps out of RSS. It has reserved them, perhaps to lease them to a future
// container. `changes` are those of gpurx, whose own queues are out of RSS too. `table` is the present table of the
// NIC, which has `rx_queues` queues.
[[nodiscard]] std::set<unsigned> reserved_queues(std::vector<setting_change> const& changes, setting_value const& table,
                                                 unsigned rx_queues);

// Turns header split on explicitly: bind-rx fails if the driver only reports it on by default. Some drivers allow it
// only together with rx-gro-hw; the function then turns that on too.
void split_headers(device_journal& log, nic_device& nic);

// Records and sets `what` to `wanted`. If the NIC already has the value, it records nothing. If another program has
// changed the value that gpurx set, the setting returns to that program's value at the end. Not for data_split and
// rss_table.
void change_setting(device_journal& log, nic_device& nic, setting what, setting_value const& wanted);

// Keeps RSS off the queues of all owners. `before`: the table before the channels were changed; empty if there is none.
void avoid_leased_queues(device_journal& log, nic_device& nic, setting_value const& before);
// The same after an owner has ended, while others remain: RSS may use its queues again.
void return_unleased_queues(device_journal& log, nic_device& nic, report& said);

// Restores settings in reverse order, if they still have the values that gpurx set. Settings that cannot be restored
// stay recorded.
void restore_settings(device_journal& log, nic_device& nic, report& said);

}  // namespace gpurx::detail
