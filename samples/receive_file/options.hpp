// SPDX-License-Identifier: Apache-2.0
//
// The command line of receive_file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "endpoint.hpp"
#include "session_options.hpp"

struct options {
    bool listens = false;  // else it connects
    endpoint_name endpoint;

    session_choice nic;

    bool loans = false;            // zero copy, instead of reading into a range of our own
    std::filesystem::path output;  // empty: only the hash
    std::string expected_sha256;   // empty: whatever comes
    bool json = false;
};

// Empty: `exit_code` says how the program ends (help was asked for, or the line is wrong; printed already).
std::optional<options> parse_command_line(int argc, char** argv, int& exit_code);
