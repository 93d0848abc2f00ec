// SPDX-License-Identifier: Apache-2.0
//
// How far the transfer is: one line, with a bar where it is known how much is to come, rewritten on a terminal,
// repeated every ten seconds elsewhere.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

// "1.5 GiB", with at most one decimal.
std::string size_text(double bytes);

class progress {
  public:
    progress();
    // So many bytes are to come. From any thread.
    void expect(std::uint64_t bytes) noexcept { expected_ = bytes; }
    void update(std::uint64_t bytes);
    // Clears the line, and returns the time since the start of the first byte.
    std::chrono::duration<double> finish();

  private:
    using clock = std::chrono::steady_clock;

    [[nodiscard]] std::string share_of(std::uint64_t bytes) const;

    bool terminal_;
    clock::duration every_;
    clock::time_point start_{};
    clock::time_point displayed_{};
    std::uint64_t displayed_bytes_ = 0;
    std::atomic<std::uint64_t> expected_ = 0;  // 0: not known
};
