// SPDX-License-Identifier: Apache-2.0
//
// What rounds add up to, for people and as JSON. Pure.
#pragma once

#include <span>
#include <string>

#include "client.hpp"

namespace gpurx::perf {

// A line for each setting: medians of its rounds, and the latencies of all their messages.
[[nodiscard]] std::string table(std::span<round_result const> rounds);
// {"gpurx_perf": 1, "version": …, "load": {…}, "rounds": [{…}, …], "settings": [{…}, …]}; times in seconds, latencies
// in microseconds. A setting's rows are medians of its rounds.
[[nodiscard]] std::string json(client_options const& wanted, std::span<round_result const> rounds);

[[nodiscard]] double gib_per_second(result const& of);
// Seconds of a core for each GiB that was received. 0: nothing was.
[[nodiscard]] double cpu_per_gib(std::uint64_t cpu_ns, result const& of);

}  // namespace gpurx::perf
