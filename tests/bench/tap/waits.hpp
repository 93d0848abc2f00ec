// SPDX-License-Identifier: Apache-2.0
//
// How often this thread waits in the kernel for a grace period of RCU: the calls of the functions that do, by kprobes
// that perf counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/syscalls.hpp"

namespace bench {

class grace_periods {
  public:
    // For the thread that makes it.
    grace_periods();

    // Since this was made; each call of synchronize_net() comes to one of the two others.
    [[nodiscard]] std::uint64_t waited_for() const;
    // Why they cannot be counted; empty: they can.
    [[nodiscard]] std::string const& refusal() const noexcept { return refusal_; }

  private:
    std::array<gpurx::detail::unique_fd, 2> counters_;
    std::string refusal_;
};

// Why perf cannot count instructions here; empty: it can.
[[nodiscard]] std::string instructions_refused();

}  // namespace bench
