// SPDX-License-Identifier: Apache-2.0
//
// What all connections of a download have in common.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include <gpurx/ingest/http.hpp>
#include <gpurx/session.hpp>

#include "../net/http_connection.hpp"

namespace gpurx::ingest::detail {

struct http_counters {
    std::atomic<std::uint64_t> requests{0}, connections{0}, retries{0}, redirects{0}, bytes{0};

    [[nodiscard]] fetch_stats read() const noexcept
    {
        return {.requests = requests,
                .connections = connections,
                .retries = retries,
                .redirects = redirects,
                .bytes_placed = bytes};
    }
};

struct transfer_context {
    rx_session& session;
    fetch_options options;
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
    http_counters counters = {};

    [[nodiscard]] connection_limits limits(speed_check is_outrun) const
    {
        return {options.timeout, options.min_speed, deadline, std::move(is_outrun)};
    }

    // Whether a connection was worth its while: a server that brings a few bytes each time would never be done.
    [[nodiscard]] bool is_progress(std::uint64_t brought) const noexcept
    {
        return brought > 0 && brought >= std::min<std::uint64_t>(options.chunk_size / 64, 64 << 10);
    }
};

}  // namespace gpurx::ingest::detail
