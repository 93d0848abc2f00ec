// SPDX-License-Identifier: Apache-2.0
//
// The command line of receive_file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <gpurx/memory.hpp>
#include <gpurx/session.hpp>
#include <optional>
#include <string>

struct endpoint_name {
    std::string host;
    std::string port;
};

struct options {
    bool listens = false;  // else it connects
    endpoint_name endpoint;

    gpurx::rx_session_options session;
    int gpu = -1;  // the device's CUDA ordinal; -1: host memory
    std::size_t memory_size = std::size_t{64} << 20;

    bool loans = false;            // zero copy, instead of reading into a range of our own
    std::filesystem::path output;  // empty: only the hash
    std::string expected_sha256;   // empty: whatever comes
    bool json = false;
};

// Empty: `exit_code` says how the program ends (help was asked for, or the line is wrong; printed already).
std::optional<options> parse_command_line(int argc, char** argv, int& exit_code);
