// SPDX-License-Identifier: Apache-2.0
//
// Processes and this one's surroundings: which process is which, and whether it lives, which tells the owners in a
// journal from the dead; what this one may do, and which interfaces it sees.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpurx::detail {

// One session of one process. The start time tells a process from a later one with its number; numbers mean nothing in
// another pid namespace.
struct owner_key {
    std::int32_t pid = 0;
    std::uint64_t start_time = 0;  // in clock ticks since boot
    std::uint64_t pid_namespace = 0;
    std::uint64_t session = 0;  // counts the sessions of the process

    friend auto operator<=>(owner_key const&, owner_key const&) = default;
};

// The fields of /proc/PID/stat that matter.
struct process_stat {
    char state = '?';
    std::uint32_t threads = 0;
    std::uint64_t start_time = 0;  // in clock ticks since boot

    // A zombie has closed its descriptors; but the first thread of a process may be one while others live on.
    [[nodiscard]] bool alive() const noexcept { return (state != 'Z' && state != 'X') || threads > 1; }
    friend bool operator==(process_stat const&, process_stat const&) = default;
};
[[nodiscard]] std::optional<process_stat> parse_process_stat(std::string_view text);

// This process, as the owner of its session number `session`. Throws system_error if /proc cannot be read.
[[nodiscard]] owner_key this_process(std::uint64_t session);

// Does this owner's process live? Nothing, if that cannot be told: it is one of another pid namespace,
// or /proc hides it.
[[nodiscard]] std::optional<bool> is_alive(owner_key const& owner);

// Throws system_error.
[[nodiscard]] std::string boot_id();
// The cookie of this thread's network namespace. Throws system_error.
[[nodiscard]] std::uint64_t network_namespace();

// Whether this process has CAP_NET_ADMIN in the user namespace that owns this thread's network namespace.
[[nodiscard]] bool may_configure_nics();

// The interface of this thread's network namespace that has this name now; any of its names will do. Throws
// system_error: ENODEV, with the names of those that there are.
unsigned index_of_interface(std::string_view name);
// Advises a program that has named an interface that there is not. Pure.
[[nodiscard]] std::string advice_on_interfaces(std::vector<std::string> const& names);

}  // namespace gpurx::detail
