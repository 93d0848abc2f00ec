// SPDX-License-Identifier: Apache-2.0
//
// Findings as text for people, and as JSON for programs. No I/O.
#pragma once

#include <string>
#include <vector>

#include "findings.hpp"

namespace gpurx::doctor {

// Of one interface: every finding, the worst first.
[[nodiscard]] std::string text_report(interface_facts const& interface, diagnosis const& found);
// Of all: what is the matter with the machine, then a line for each interface. The best is marked, if it is a NIC that
// can have transport devmem. Both reports say that transport copy works where devmem does not.
[[nodiscard]] std::string text_overview(facts const& seen);
// The commands that --fix stands for, one a line. A command of gpurx-doctor's own is a line "# CHANGE" for each change.
// A line that begins with "# nothing" where there is nothing to do.
[[nodiscard]] std::string commands_to_fix(diagnosis const& found);

// {"version", "kernel", "verdict", "best", "interfaces": [{"name", "driver", "verdict", "findings": [{"severity",
// "topic", "what", "evidence", "command", "fixable", "changes"}]}]}. Of those interfaces that are in the facts;
// "verdict" is that of the best; "best" is null where no interface is a NIC that can have transport devmem.
[[nodiscard]] std::string json_report(facts const& seen);

}  // namespace gpurx::doctor
