// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "lease/journal.hpp"
#include "policy_file.hpp"

namespace gpurx::gpurxd {

// Restores the interfaces that the policy names from what dead processes left, and says so on stderr. Blocks.
void recover_all(daemon_paths const& paths) noexcept;

// Does the same for processes that have died since the last check. The journals name them: this process is not told of
// the end of those that serve clients of an earlier daemon.
class recovery_watch {
  public:
    explicit recovery_watch(daemon_paths paths) : paths_{std::move(paths)} {}

    void check() noexcept;

  private:
    daemon_paths paths_;
    std::vector<detail::owner_key> seen_;  // dead, with something left in a journal
};

}  // namespace gpurx::gpurxd
