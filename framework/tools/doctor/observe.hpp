// SPDX-License-Identifier: Apache-2.0
//
// Observes this machine, its interfaces and a GPU; changes nothing, a trial aside, and judges nothing. A fact that
// cannot be found out stays absent. Throws system_error only where nothing is left to observe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "facts.hpp"

namespace gpurx::doctor {

struct observation {
    std::string interface;  // empty: all
    std::optional<int> gpu;
    requirements wanted;
    std::string state_directory;  // of sessions
    std::string own_directory;    // of what --fix changed
    bool try_zcrx = false;        // on the named interface
};

// Throws system_error: ENODEV if there is no such interface.
[[nodiscard]] facts observe(observation const& what);

[[nodiscard]] machine_facts observe_machine(std::string const& state_directory);
[[nodiscard]] gpu_facts observe_gpu(int ordinal);
// Opens a session with transport zcrx, and ends it: the NIC is changed meanwhile, by the sessions' journal.
[[nodiscard]] zcrx_trial try_zcrx(std::string const& interface, std::uint64_t memory,
                                  std::string const& state_directory);
// The journal of the interface with this index in `directory`; nothing: there is none, or it could not be read, and
// `failure` says why. Read without its lock: it is replaced in one piece, and lines are added whole.
[[nodiscard]] std::optional<detail::journal> journal_in(std::string const& directory, unsigned index,
                                                        std::string& failure);
// The place of a PCI device.
[[nodiscard]] pci_facts observe_pci(std::string const& address);
// A file of sysfs or procfs; empty if it cannot be read.
[[nodiscard]] std::string read_text(std::string const& path);
[[nodiscard]] std::string read_line(std::string const& path);

}  // namespace gpurx::doctor
