// SPDX-License-Identifier: Apache-2.0
//
// Command line and final report of receive_file.
#pragma once

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <gpurx/session.hpp>
#include <gpurx/stats.hpp>
#include <optional>
#include <string>

#include "common_options.hpp"

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

struct report {
    gpurx::transport transport{};
    std::string explanation;  // rx_session::explain()
    gpurx::stats stats;
    std::chrono::duration<double> time{};
    std::string sha256;
    std::string expected_sha256;  // empty: none

    [[nodiscard]] bool as_expected() const { return expected_sha256.empty() || expected_sha256 == sha256; }
};

void print_table(report const& report, std::FILE* to);
void print_json(report const& report, std::FILE* to);
