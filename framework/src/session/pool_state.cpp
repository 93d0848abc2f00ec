// SPDX-License-Identifier: Apache-2.0
#include "pool_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/byte_size.hpp"

namespace gpurx::detail {

page_census::page_census(memory_span memory, std::size_t page_size)
    : memory_{memory}, page_shift_{std::countr_zero(page_size)}, noted_(memory.size() >> page_shift_)
{}

std::uint64_t page_census::note(fragment const& piece) noexcept
{
    if (piece.kind != memory_.kind() || piece.size == 0 || piece.address < memory_.address() ||
        piece.address - memory_.address() >= memory_.size())
        return 0;
    auto const begin = piece.address - memory_.address();
    auto const end = std::min<std::uint64_t>(noted_.size(), ((begin + piece.size - 1) >> page_shift_) + 1);
    std::uint64_t count = 0;
    for (auto page = begin >> page_shift_; page < end; ++page) {
        count += noted_[page] ? 0 : 1;
        noted_[page] = true;
    }
    return count;
}

namespace {

std::string told(char const* what, std::optional<std::uint64_t> const& count)
{
    return count ? fmt::format("{} {}", *count, what) : fmt::format("{} are not counted by the driver", what);
}

// The pages that the kernel has. It does not tell which of them are in the ring.
std::string in_ring_and_queues(pool_stats const& account)
{
    auto const queues = fmt::format("socket queues or kept for the next packet (those of this session's flows hold {})",
                                    size_text(account.in_sockets));
    if (!account.ring_demand)
        return fmt::format("{} in the NIC's ring (whose size is not known), in {}", account.in_queues, queues);
    return fmt::format("{} in the NIC's ring by its size, which needs at least {}, {} in {}", account.in_ring,
                       *account.ring_demand, account.in_queues, queues);
}

std::string dry(pool_stats const& account)
{
    if (!account.dry_time)
        return "the time dry is not known";
    return fmt::format("dry for {:.1f} s", std::chrono::duration<double>{*account.dry_time}.count());
}

}  // namespace

void divide(pool_stats& account, std::uint64_t in_flight) noexcept
{
    auto const held = account.on_loan + account.parked + account.in_reads;
    auto const out = std::clamp(in_flight, std::min(held, account.pages), account.pages);
    account.free = account.pages - out;
    auto const in_kernel = out - std::min(held, out);
    account.in_ring = std::min(in_kernel, account.ring_demand.value_or(0));
    account.in_queues = in_kernel - account.in_ring;
}

std::string describe(pool_stats const& account)
{
    auto text = fmt::format(
        "pages: {} of {}: {} free, {}, {} on loan, {} parked behind GPU streams, {} in reads; at most {} were not "
        "free; {}; "
        "{}, {}",
        account.pages, size_text(account.page_size), account.free, in_ring_and_queues(account), account.on_loan,
        account.parked, account.in_reads, account.high_water, dry(account),
        told("allocation failures", account.allocation_failures),
        told("drops without a free buffer", account.overruns));
    for (auto const& flow : account.flows)
        if (flow.on_loan + flow.parked + flow.in_reads > 0)
            text += fmt::format("\npages of {}: {} on loan, {} parked behind GPU streams, {} in reads", flow.connection,
                                flow.on_loan, flow.parked, flow.in_reads);
    return text;
}

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
