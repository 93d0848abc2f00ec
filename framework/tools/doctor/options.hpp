// SPDX-License-Identifier: Apache-2.0
//
// The command lines of gpurx-doctor and of gpurx-doctor tap.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tap/filter.hpp"

namespace gpurx::doctor {

struct options {
    std::string interface;  // empty: all
    std::optional<int> gpu;
    std::uint64_t memory = 64 << 20;
    std::string state_directory = "/run/gpurx";
    bool json = false;
    bool fix = false;
    bool dry_run = false;
    bool undo = false;
    bool try_zcrx = false;
};

enum exit_status : int { ready = 0, degraded = 1, not_possible = 2, bad_usage = 3 };

// Nothing, with the exit status: --help or --version was printed, or what is wrong.
[[nodiscard]] std::optional<options> parse_command_line(int argc, char** argv, int& exit_code);

}  // namespace gpurx::doctor

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
