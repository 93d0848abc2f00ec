// SPDX-License-Identifier: Apache-2.0
//
// The command line of tensor_source.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common_options.hpp"

struct options {
    std::vector<endpoint_name> to;        // the receivers: source i sends to the one at i modulo their number
    std::optional<endpoint_name> listen;  // or the receiver connects to us

    std::vector<std::string> tensors;  // as on the command line
    std::uint64_t synthetic_rows = 1000;

    std::uint32_t source = 0;
    std::uint32_t sources = 1;
    std::uint64_t epochs = 1;
    std::uint64_t rows_per_frame = 0;  // 0: as many as fit into about 4 MiB
    bool crc = false;
    bool resume = false;
    std::string secret;  // empty: none
    std::chrono::seconds retry{30};
    bool json = false;
};

// Empty: `exit_code` says how the program ends (help was asked for, or the line is wrong; printed already).
std::optional<options> parse_command_line(int argc, char** argv, int& exit_code);
