// SPDX-License-Identifier: Apache-2.0
//
// Who may have what of which interface: a text, a line each, `#` begins a comment:
//
//   allow user NAME|UID|*   interface NAME|*  [LIMIT VALUE]...
//   allow group NAME|GID    interface NAME|*  [LIMIT VALUE]...
//
// The first line that fits the caller and the interface counts. No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gpurx::gpurxd {

// Of each client, which is a connection to the daemon: a session of a program.
struct limits {
    unsigned queues = 1;
    std::uint64_t memory = std::uint64_t{1} << 30;  // bytes
    unsigned flows = 64;                            // that are steered at one time, listeners included
    unsigned rules = 100;                           // a second. One that wants more waits
    unsigned clients = 1;                           // of one user on one interface, at one time
    unsigned opens = 20;                            // of one user, a minute. One that wants more waits

    friend bool operator==(limits const&, limits const&) = default;
};

enum class who : std::uint8_t { anyone, user, group };

struct policy_line {
    who kind = who::anyone;
    std::string name;       // or the number; empty for anyone
    std::string interface;  // "*": each
    limits most;

    friend bool operator==(policy_line const&, policy_line const&) = default;
};

struct policy {
    std::vector<policy_line> lines;

    friend bool operator==(policy const&, policy const&) = default;
};

struct policy_damage {
    unsigned line = 0;  // from 1
    std::string what;

    friend bool operator==(policy_damage const&, policy_damage const&) = default;
};

// Or every line that is wrong.
[[nodiscard]] std::variant<policy, std::vector<policy_damage>> parse_policy(std::string_view text);

// A process at the other end of a connection.
struct caller {
    std::uint32_t uid = 0;
    std::string user;  // its name; empty: it has none
    std::vector<std::uint32_t> gids;
    std::vector<std::string> groups;  // names of those that have one
};

// Nothing: nobody allows it.
[[nodiscard]] std::optional<limits> find_limits(policy const& known, caller const& from, std::string_view interface);

}  // namespace gpurx::gpurxd
