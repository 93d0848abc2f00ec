// SPDX-License-Identifier: Apache-2.0
//
// The command line.
#pragma once

#include <optional>
#include <string>

#include "policy_file.hpp"

namespace gpurx::gpurxd {

inline constexpr int bad_usage = 2;

struct options {
    daemon_paths where;
    std::string socket = "/run/gpurxd.sock";
    std::string metrics_directory;  // empty: no metrics
    bool check = false;
    int connection = -1;  // not -1: serve this one client
};

// Nothing: `exit_code` says how to end.
[[nodiscard]] std::optional<options> parse_command_line(int argc, char** argv, int& exit_code);

}  // namespace gpurx::gpurxd
