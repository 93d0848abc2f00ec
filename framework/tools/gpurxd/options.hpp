// SPDX-License-Identifier: Apache-2.0
//
// The command line.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "machine.hpp"

namespace gpurx::gpurxd {

inline constexpr int bad_usage = 2;

struct options {
    places where;
    std::string socket = "/run/gpurxd.sock";
    std::string metrics_socket = "/run/gpurxd-metrics.sock";  // empty: none
    bool check = false;
    int connection = -1;  // not -1: serve this one client
    int metrics = 0;      // not 0: answer for metrics at so many sockets, as long as `daemon` is the parent
    pid_t daemon = 0;
};

// Nothing: `exit_code` says how to end.
[[nodiscard]] std::optional<options> parse_command_line(int argc, char** argv, int& exit_code);

}  // namespace gpurx::gpurxd
