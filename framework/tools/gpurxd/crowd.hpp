// SPDX-License-Identifier: Apache-2.0
//
// Who may still come in: connections that are being served, by how well the policy knows their users. Some places are
// kept for those whom it names, so that others, however many, cannot shut them out. No I/O.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>

#include "policy.hpp"

namespace gpurx::gpurxd {

enum class standing : std::uint8_t {
    stranger,  // no line fits: it will be refused, with the reason
    anyone,    // a line for everybody
    named,     // one for this user, or a group
};

// Whom the policy's lines mean, as numbers, on any interface.
struct known_ids {
    bool anyone = false;
    std::set<std::uint32_t> users = {};
    std::set<std::uint32_t> groups = {};

    friend bool operator==(known_ids const&, known_ids const&) = default;
};

[[nodiscard]] standing standing_of(known_ids const& known, caller const& from);

class crowd {
  public:
    // False: there is no place for it.
    [[nodiscard]] bool has_room(standing how, uid_t user) const;
    void add(pid_t process, standing how, uid_t user) { served_.emplace(process, guest{how, user}); }
    void remove(pid_t process) { served_.erase(process); }

  private:
    struct guest {
        standing how;
        uid_t user;
    };
    std::unordered_map<pid_t, guest> served_;
};

}  // namespace gpurx::gpurxd
