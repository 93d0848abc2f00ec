// SPDX-License-Identifier: Apache-2.0
//
// The command line of gpurx-doctor tap.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "selection.hpp"

namespace gpurx::doctor::tap {

struct options {
    std::string interface;
    selections chosen;  // empty: what the sessions on the interface receive
    std::string file;   // empty: none; "-": standard output
    std::optional<std::chrono::duration<double>> time;
    std::size_t buffer = 2 << 20;
    std::string state_directory = "/run/gpurx";
    bool json = false;
};

// Nothing, with the exit status of gpurx-doctor: --help was printed, or what is wrong. argv[0] is "tap".
[[nodiscard]] std::optional<options> parse_command_line(int argc, char** argv, int& exit_code);

}  // namespace gpurx::doctor::tap
