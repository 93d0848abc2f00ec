// SPDX-License-Identifier: Apache-2.0
//
// In which order rows are handed out: the same on every machine. No input or output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace gpurx::ingest::detail {

// SplitMix64, by Steele, Lea and Flood: each seed gives a sequence of its own.
class split_mix {
  public:
    explicit split_mix(std::uint64_t seed) noexcept : state_{seed} {}

    std::uint64_t operator()() noexcept
    {
        state_ += 0x9e3779b97f4a7c15;
        auto z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    // Below `bound`, which is not 0, each as likely as the others.
    std::uint64_t below(std::uint64_t bound) noexcept
    {
        auto const unfair = (0 - bound) % bound;  // so many numbers would make the first more likely
        for (;;) {
            if (auto const found = (*this)(); found >= unfair)
                return found % bound;
        }
    }

  private:
    std::uint64_t state_;
};

// 0 to count - 1, each order as likely as the others (Fisher and Yates).
[[nodiscard]] inline std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t seed, std::uint64_t epoch,
                                                       std::uint64_t window)
{
    auto const mixed = split_mix{split_mix{split_mix{seed}() ^ epoch}() ^ window}();
    split_mix random{mixed};
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (auto i = count; i > 1; --i)
        std::swap(order[i - 1], order[random.below(i)]);
    return order;
}

}  // namespace gpurx::ingest::detail
