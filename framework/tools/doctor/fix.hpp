// SPDX-License-Identifier: Apache-2.0
//
// Changes an interface for --fix and --undo. Each change is in a journal before it is made. The journal has the form of
// the sessions' ones, and a file of its own, which outlives sessions. undo() puts back each change that nobody else has
// changed since. The journal ends with the boot.
#pragma once

#include <string>
#include <vector>

#include "findings.hpp"
#include "lease/device_journal.hpp"
#include "nic/nic_device.hpp"

namespace gpurx::doctor {

// Sentences for people.
struct fix_report {
    std::vector<std::string> done;
    std::vector<std::string> failed;
};

// Does what the findings name, in their order. `own` has the directory of the journal, `sessions` that of the
// sessions' journals.
[[nodiscard]] fix_report apply_fixes(std::vector<finding> const& findings, detail::nic_device& nic,
                                     detail::lease_environment const& own, detail::lease_environment const& sessions);
// Throws system_error: the journal cannot be had.
[[nodiscard]] fix_report undo(detail::nic_device& nic, detail::lease_environment const& own);

}  // namespace gpurx::doctor
