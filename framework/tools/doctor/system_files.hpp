// SPDX-License-Identifier: Apache-2.0
//
// Parsers of what the system's files say: of PCI devices in sysfs, and of the kernel's configuration. No I/O.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "facts.hpp"

namespace gpurx::doctor {

// The devices in a path below /sys/devices, from the root on: "…/0000:00:01.0/0000:01:00.0/net/eth0" has two.
[[nodiscard]] std::vector<std::string> pci_addresses(std::string_view path);

// Whether a bridge's configuration space has access control that keeps what one device below it sends to another from
// going there directly. Nothing: it has no access control, or the bytes end before that is seen.
[[nodiscard]] std::optional<bool> redirects_peers(std::string_view config);

// Bytes of the region with this number, of the file `resource` of a device. Nothing: it has none.
[[nodiscard]] std::optional<std::uint64_t> region_size(std::string_view resource, unsigned number);

// The bridges that bytes between the two pass, below what they have in common; and whether they have any bridge in
// common, without which they pass the root of the tree, which many machines cannot route.
struct pci_route {
    std::vector<std::string> between;
    bool common = false;
};
[[nodiscard]] pci_route route_between(pci_facts const& one, pci_facts const& other);

// Reads a kernel's configuration, as /proc/config.gz and /boot/config-* have it. Of the options in `wanted` (without
// CONFIG_) those that are set, and their values.
[[nodiscard]] std::map<std::string, std::string> read_kernel_config(std::string_view text,
                                                                    std::span<std::string_view const> wanted);

// Unpacks gzip; nothing: it is no gzip, or damaged, or longer than 16 MiB.
[[nodiscard]] std::optional<std::string> gunzip(std::string_view packed);

}  // namespace gpurx::doctor
