// SPDX-License-Identifier: Apache-2.0
#include "lock_up.hpp"

#include "memory/byte_size.hpp"

namespace gpurx::detail {

std::uint64_t pages_of_a_segment(std::size_t page_size) noexcept
{
    // A segment that begins in the middle of a page takes one more.
    return round_up(64 * kibibyte, page_size) / page_size + 1;
}

bool is_dry(pool_sample const& sample, std::uint64_t pages, std::size_t page_size) noexcept
{
    return sample.in_flight + pages_of_a_segment(page_size) > pages;
}

pool_verdict lock_up_detector::look_at(lock_up_sample const& sample) const noexcept
{
    if (!sample.needs_pool() || !sample.pool || !is_dry(*sample.pool, pages_, page_size_))
        return pool_verdict::moving;
    return sample.pages_on_loan == 0 ? pool_verdict::locked_up : pool_verdict::starved;
}

// Pages that wait in the pool for recycling count as in flight, so a full count alone proves nothing. Packets that
// found no page do; and where the driver does not count these, not one page that changes hands, while data waits behind
// a hole or the program holds most of the memory.
bool lock_up_detector::lacks_pages(pool_sample const& then, lock_up_sample const& now) const noexcept
{
    if (then.allocation_failures && now.pool->allocation_failures)
        return *now.pool->allocation_failures > *then.allocation_failures;
    return now.pool->in_flight == then.in_flight && (now.pages_on_loan == 0 || 2 * now.pages_on_loan > pages_);
}

pool_verdict lock_up_detector::judge(lock_up_sample const& sample) noexcept
{
    auto const verdict = look_at(sample);
    if (verdict == pool_verdict::moving) {
        reset();
        return verdict;
    }
    if (!since_ || since_->bytes_delivered != sample.bytes_delivered || look_at(*since_) != verdict) {
        reset();
        since_ = sample;
        return pool_verdict::moving;
    }
    if (told_ || sample.at - since_->at < limit_ || !lacks_pages(*since_->pool, sample))
        return pool_verdict::moving;
    if (verdict == pool_verdict::locked_up)
        since_.reset();
    else
        told_ = true;
    return verdict;
}

void lock_up_detector::reset() noexcept
{
    since_.reset();
    told_ = false;
}

}  // namespace gpurx::detail
