// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "lease/journal.hpp"
#include "policy_file.hpp"

namespace gpurx::gpurxd {

// Puts back what dead processes left on the interfaces that the policy names, and says so on stderr. Blocks.
void mend(daemon_paths const& where) noexcept;

// The same after those alone who have died since the last look: the journals say who that is. Clients whom an earlier
// daemon has taken are served by processes of which this one hears nothing else.
class death_watch {
  public:
    explicit death_watch(daemon_paths where) : where_{std::move(where)} {}

    void look() noexcept;

  private:
    daemon_paths where_;
    std::vector<detail::owner_key> seen_;  // dead, with something left in a journal
};

}  // namespace gpurx::gpurxd
