// SPDX-License-Identifier: Apache-2.0
//
// Which of a session's memories a connection is put on, where the program leaves that open. Decisions only; no I/O.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace gpurx::detail {

struct part_condition {
    unsigned free_places = 0;  // for flows
    bool failed = false;       // its GPU is in error for good
};

// Takes turns among the parts that can take a flow.
class part_turns {
  public:
    // Nothing: none can.
    [[nodiscard]] std::optional<std::size_t> next(std::span<part_condition const> parts) noexcept;

  private:
    std::size_t turn_ = 0;
};

}  // namespace gpurx::detail
