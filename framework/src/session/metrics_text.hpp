// SPDX-License-Identifier: Apache-2.0
//
// The counters of sessions in Prometheus' text format.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <gpurx/stats.hpp>

namespace gpurx::detail {

struct session_sample {
    std::string name;
    std::string interface;
    std::string transport;
    std::string tokens;
    std::string obstacle;       // to devmem
    std::string zcrx_obstacle;  // to zcrx
    std::uint64_t memory_bytes = 0;
    std::uint64_t queues = 0;
    gpurx::stats counted;
    std::optional<pool_stats> pool{};  // empty: not known
};

// Returns the value of a label. A backslash escapes backslash, quotation mark and line feed.
[[nodiscard]] std::string escaped_label(std::string_view text);

[[nodiscard]] std::string format_metrics(std::string_view version, std::span<session_sample const> samples);

}  // namespace gpurx::detail
