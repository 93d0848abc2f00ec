// SPDX-License-Identifier: Apache-2.0
//
// The parts of check_interface() by subject. No I/O.
#pragma once

#include <vector>

#include "findings.hpp"

namespace gpurx::doctor {

// queue_findings.cpp: queues, RSS and rules, and whether the ring leaves memory to flows.
void check_queues(interface_facts const& nic, machine_facts const& machine, requirements const& wanted,
                  std::vector<finding>& found);
// Queues of a NIC that cannot be seen from here.
[[nodiscard]] finding check_leases(interface_facts const& nic);
// Sessions of gpurx that use the interface, and what ended ones left.
void check_sessions(interface_facts const& nic, std::vector<finding>& found);

// gpu_findings.cpp: the path of bytes between NIC and GPU.
void check_path(interface_facts const& nic, gpu_facts const& gpu, std::vector<finding>& found);

}  // namespace gpurx::doctor
