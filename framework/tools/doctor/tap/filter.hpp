// SPDX-License-Identifier: Apache-2.0
//
// Selections as a program of the kernel's classic BPF. No I/O.
#pragma once

#include <linux/filter.h>

#include <cstddef>
#include <vector>

#include "selection.hpp"

namespace gpurx::doctor::tap {

// What the kernel takes at most.
inline constexpr std::size_t longest_program = 4096;

struct filter {
    std::vector<sock_filter> program;
    bool widened = false;  // the selections did not fit: it lets more through, but no less
};

// For Ethernet frames. Of a TCP packet that is chosen it lets through the headers and one byte of the payload: that
// comes where payload lies in memory that the host can read, and tells packets that the NIC did not split. Of all
// others nothing. IPv4 fragments but the first, IPv6 with extension headers and frames with a VLAN tag inside are not
// chosen. Throws std::length_error if it does not fit even so.
[[nodiscard]] filter make_filter(selections const& chosen);

}  // namespace gpurx::doctor::tap
