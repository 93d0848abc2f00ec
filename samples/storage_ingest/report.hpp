// SPDX-License-Identifier: Apache-2.0
//
// Final report of gpurx-fetch.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <gpurx/ingest/http.hpp>
#include <gpurx/ingest/safetensors.hpp>
#include <gpurx/session.hpp>
#include <gpurx/stats.hpp>
#include <optional>
#include <string>
#include <vector>

struct report {
    gpurx::transport transport{};
    std::string explanation;  // rx_session::explain()
    gpurx::stats stats;
    gpurx::ingest::fetch_stats http;
    std::vector<gpurx::ingest::mirror_stats> mirrors;
    std::chrono::duration<double> time{};
    std::chrono::duration<double> cpu_time{};  // of the process meanwhile
    std::string url;
    std::string etag;
    std::uint64_t size = 0;
    std::optional<std::uint32_t> crc32c;
    bool crc32c_announced = false;  // and found equal
    std::string sha256;             // of the object, or of the block of tensors; empty: not computed
    std::string expected_sha256;    // empty: none
    std::vector<gpurx::ingest::safetensor> tensors;
    std::vector<std::uint64_t> offsets;  // of each, in the block
    std::uintptr_t block = 0;

    [[nodiscard]] bool as_expected() const { return expected_sha256.empty() || expected_sha256 == sha256; }
};

void print_table(report const& report, std::FILE* to);
void print_json(report const& report, std::FILE* to);
