// SPDX-License-Identifier: Apache-2.0
#include "histogram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gpurx::perf {

namespace {

// Values below 2^7 have a bucket each; of each power of two above there are 2^6.
constexpr unsigned bits = 6;
constexpr std::size_t bucket_count = std::size_t{64 - bits + 1} << bits;

constexpr std::size_t bucket_of(std::uint64_t value) noexcept
{
    auto const width = static_cast<unsigned>(std::bit_width(value));
    auto const shift = width > bits + 1 ? width - bits - 1 : 0U;
    return (std::size_t{shift} << bits) + static_cast<std::size_t>(value >> shift);
}

// The largest value in it.
constexpr std::uint64_t end_of(std::size_t bucket) noexcept
{
    auto const shift = bucket < (std::size_t{2} << bits) ? 0U : static_cast<unsigned>(bucket >> bits) - 1;
    auto const lead = static_cast<std::uint64_t>(bucket) - (std::uint64_t{shift} << bits);
    return ((lead + 1) << shift) - 1;
}

static_assert(bucket_of(0) == 0 && bucket_of(127) == 127 && bucket_of(128) == 128 && bucket_of(129) == 128);
static_assert(end_of(127) == 127 && end_of(128) == 129 && bucket_of(~std::uint64_t{0}) == bucket_count - 1);
static_assert(end_of(bucket_count - 1) == ~std::uint64_t{0});

}  // namespace

histogram::histogram() : buckets_(bucket_count) {}

void histogram::add(std::chrono::nanoseconds duration) noexcept
{
    auto const value = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 0));
    ++buckets_[bucket_of(value)];
    ++count_;
    largest_ = std::max(largest_, value);
}

void histogram::add(histogram const& other) noexcept
{
    for (std::size_t i = 0; i < buckets_.size(); ++i)
        buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    largest_ = std::max(largest_, other.largest_);
}

std::chrono::nanoseconds histogram::percentile(double percent) const noexcept
{
    auto const rank = static_cast<std::uint64_t>(std::ceil(percent / 100 * static_cast<double>(count_)));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
        seen += buckets_[i];
        if (seen > 0 && seen >= rank)
            return std::chrono::nanoseconds{static_cast<std::int64_t>(std::min(end_of(i), largest_))};
    }
    return {};
}

}  // namespace gpurx::perf
