// SPDX-License-Identifier: Apache-2.0
//
// Which process is which, and whether it lives: what tells the owners in a journal from the dead. And the surroundings
// of a lease, of which that is a part.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lease/journal.hpp"

namespace gpurx::detail {

// What matters of /proc/PID/stat.
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

struct lease_environment {
    std::string state_directory;
    std::string boot_id;
    std::uint64_t netns = 0;
    owner_key self;
    // Whether the process of an owner lives; nothing: cannot be told from here.
    std::function<std::optional<bool>(owner_key const&)> alive;

    // How long to wait for another session that is changing the interface, and for a queue whose last user is just
    // being cleaned up by the kernel.
    std::chrono::milliseconds lock_patience{std::chrono::seconds{10}};
    std::chrono::milliseconds busy_patience{std::chrono::seconds{2}};
};

// A new session of this process. Throws system_error.
[[nodiscard]] lease_environment this_environment(std::string state_directory);

}  // namespace gpurx::detail
