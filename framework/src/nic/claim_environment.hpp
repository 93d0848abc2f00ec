// SPDX-License-Identifier: Apache-2.0
//
// The surroundings of a claim: where its journal lies and who is who. Tests make their own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "journal.hpp"

namespace gpurx::detail {

struct claim_environment {
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
[[nodiscard]] claim_environment this_environment(std::string state_directory);

}  // namespace gpurx::detail
