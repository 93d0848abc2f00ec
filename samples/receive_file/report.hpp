// SPDX-License-Identifier: Apache-2.0
//
// What receive_file says at the end.
#pragma once

#include <chrono>
#include <cstdio>
#include <gpurx/session.hpp>
#include <gpurx/stats.hpp>
#include <string>

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
