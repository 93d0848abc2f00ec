// SPDX-License-Identifier: Apache-2.0
//
// The policy: a text that says which users may use which interface, and how much. `#` begins a comment:
//
//   allow user NAME|UID|*   interface NAME|*  [LIMIT VALUE]...
//   allow group NAME|GID    interface NAME|*  [LIMIT VALUE]...
//
// The first line that fits the caller and the interface counts. No I/O.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
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

enum class subject : std::uint8_t { anyone, user, group };

struct policy_line {
    subject kind = subject::anyone;
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

// Delays what exceeds `most` events per interval. A burst of `most` events is not delayed.
class rate_limit {
  public:
    using clock = std::chrono::steady_clock;

    // Precondition: above 0. `used_until`: what used_until() was of one that goes on here.
    explicit rate_limit(unsigned most, clock::duration interval = std::chrono::seconds{1},
                        clock::time_point used_until = clock::time_point::min()) noexcept
        : interval_{interval}, each_{interval / most}, used_until_{used_until}
    {}

    // Counts one that is wanted at `now`. Returns how long it has to wait.
    [[nodiscard]] clock::duration next(clock::time_point now) noexcept;
    [[nodiscard]] clock::time_point used_until() const noexcept { return used_until_; }

  private:
    clock::duration interval_;
    clock::duration each_;
    clock::time_point used_until_;
};

// The users and groups that the lines name, as numbers, on any interface.
struct policy_ids {
    bool anyone = false;
    std::set<std::uint32_t> users = {};
    std::set<std::uint32_t> groups = {};

    friend bool operator==(policy_ids const&, policy_ids const&) = default;
};

// How closely a line fits a caller.
enum class policy_match : std::uint8_t {
    none,    // no line fits: it will be refused, with the reason
    anyone,  // a line for everybody
    named,   // one for this user, or a group
};

[[nodiscard]] policy_match match_of(policy_ids const& known, caller const& from);

// The number of connections that are served at one time. Some places are kept for users whom the policy names, so that
// others, however many, cannot shut them out.
class connection_quota {
  public:
    // False: there is no place for it.
    [[nodiscard]] bool has_room(policy_match match, uid_t user) const;
    void add(pid_t process, policy_match match, uid_t user) { served_.emplace(process, connection{match, user}); }
    void remove(pid_t process) { served_.erase(process); }

  private:
    struct connection {
        policy_match match;
        uid_t user;
    };
    std::unordered_map<pid_t, connection> served_;
};

}  // namespace gpurx::gpurxd
