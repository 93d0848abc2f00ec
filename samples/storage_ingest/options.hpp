// SPDX-License-Identifier: Apache-2.0
//
// The command line of gpurx-fetch.
#pragma once

#include <filesystem>
#include <gpurx/ingest/http.hpp>
#include <optional>
#include <string>

#include "common_options.hpp"

struct options {
    std::string url;
    gpurx::ingest::fetch_options http;
    session_choice nic;
    unsigned threads = 1;

    bool safetensors = false;
    std::filesystem::path output;  // empty: none
    bool sha256 = false;
    std::string expected_sha256;  // empty: whatever comes
    bool json = false;
};

// Empty: `exit_code` says how the program ends (help was asked for, or the line is wrong; printed already).
std::optional<options> parse_command_line(int argc, char** argv, int& exit_code);
