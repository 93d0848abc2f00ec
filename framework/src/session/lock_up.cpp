// SPDX-License-Identifier: Apache-2.0
#include "lock_up.hpp"

#include "memory/byte_size.hpp"

namespace gpurx::detail {

namespace {

// Pages that wait in the pool for recycling count as in flight, so a full count alone proves nothing. Packets that
// found no page do; and where the driver does not count these, data behind a hole while not one page changes hands.
bool starved(pool_sample const& then, pool_sample const& now) noexcept
{
    if (then.allocation_failures && now.allocation_failures)
        return *now.allocation_failures > *then.allocation_failures;
    return now.in_flight == then.in_flight;
}

}  // namespace

std::uint64_t pages_of_a_segment(std::size_t page_size) noexcept
{
    // A segment that begins in the middle of a page takes one more.
    return round_up(64 * kibibyte, page_size) / page_size + 1;
}

bool lock_up_detector::stuck(lock_up_sample const& sample) const noexcept
{
    return sample.needs_pool() && sample.pool && sample.pool->in_flight + slack_ > pages_;
}

bool lock_up_detector::locked_up(lock_up_sample const& sample) noexcept
{
    if (!stuck(sample)) {
        since_.reset();
        return false;
    }
    if (!since_ || since_->bytes_delivered != sample.bytes_delivered) {
        since_ = sample;
        return false;
    }
    if (sample.at - since_->at < limit_ || !starved(*since_->pool, *sample.pool))
        return false;
    since_.reset();
    return true;
}

}  // namespace gpurx::detail
