// SPDX-License-Identifier: Apache-2.0
//
// Identity and liveness of processes, for the owners of a journal. Rights and interfaces of this process.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpurx::detail {

// One session of one process. The start time distinguishes a process from a later one with the same number. Numbers are
// not valid in another pid namespace.
struct owner_key {
    std::int32_t pid = 0;
    std::uint64_t start_time = 0;  // in clock ticks since boot
    std::uint64_t pid_namespace = 0;
    std::uint64_t session = 0;  // counts the sessions of the process

    friend auto operator<=>(owner_key const&, owner_key const&) = default;
};

// The fields of /proc/PID/stat that gpurx uses.
struct process_stat {
    char state = '?';
    std::uint32_t threads = 0;
    std::uint64_t start_time = 0;  // in clock ticks since boot

    // A zombie has closed its descriptors. But the first thread of a process may be a zombie while other threads live.
    [[nodiscard]] bool alive() const noexcept { return (state != 'Z' && state != 'X') || threads > 1; }
    friend bool operator==(process_stat const&, process_stat const&) = default;
};
[[nodiscard]] std::optional<process_stat> parse_process_stat(std::string_view text);

// Returns this process as the owner of its session number `session`. Throws system_error if /proc is not readable.
[[nodiscard]] owner_key this_process(std::uint64_t session);

// Returns whether this owner's process lives. Empty if it belongs to another pid namespace, or if /proc hides it.
[[nodiscard]] std::optional<bool> is_alive(owner_key const& owner);

// Throws system_error.
[[nodiscard]] std::string boot_id();
// The cookie of this thread's network namespace. Throws system_error.
[[nodiscard]] std::uint64_t network_namespace();

// Whether this process has CAP_NET_ADMIN in the user namespace that owns this thread's network namespace.
[[nodiscard]] bool may_configure_nics();

// Returns the interface of this thread's network namespace with this name, or with this alternative name. Throws
// system_error: ENODEV, with the names of the existing interfaces.
unsigned index_of_interface(std::string_view name);
// Returns advice for a missing interface. Pure.
[[nodiscard]] std::string advice_on_interfaces(std::vector<std::string> const& names);

}  // namespace gpurx::detail
