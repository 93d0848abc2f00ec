// SPDX-License-Identifier: Apache-2.0
//
// The results of rounds, and their summary as a table and as JSON. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "options.hpp"
#include "protocol.hpp"

namespace gpurx::perf {

// A histogram of durations. The width of a bucket is a 64th of its value: percentiles are at most 1.6 % too large, from
// a nanosecond to 584 years, in 30 KiB for any number of durations. HdrHistogram does so; Debian has no C or C++ of it.
class histogram {
  public:
    histogram();

    void add(std::chrono::nanoseconds duration) noexcept;
    void add(histogram const& other) noexcept;

    [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
    // The duration that `percent` of them do not exceed: the end of its bucket, and the largest itself for 100.
    // 0: there is none.
    [[nodiscard]] std::chrono::nanoseconds percentile(double percent) const noexcept;

  private:
    std::vector<std::uint64_t> buckets_;
    std::uint64_t count_ = 0;
    std::uint64_t largest_ = 0;
};

struct round_result {
    greeting server;
    result received;
    histogram latency;  // of messages: from when they began to be sent until they were acknowledged
};

// A line for each setting: medians of its rounds, and the latencies of all their messages.
[[nodiscard]] std::string table(std::span<round_result const> rounds);
// {"gpurx_perf": 1, "version": …, "load": {…}, "rounds": [{…}, …], "settings": [{…}, …]}; times in seconds, latencies
// in microseconds. A setting's rows are medians of its rounds.
[[nodiscard]] std::string json(client_options const& wanted, std::span<round_result const> rounds);

[[nodiscard]] double gib_per_second(result const& of);
// Seconds of a core for each GiB that was received. 0: nothing was.
[[nodiscard]] double cpu_per_gib(std::uint64_t cpu_ns, result const& of);

}  // namespace gpurx::perf
