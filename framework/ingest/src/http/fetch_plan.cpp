// SPDX-License-Identifier: Apache-2.0
#include "fetch_plan.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace gpurx::ingest::detail {

void fetch_plan::put(byte_range range)
{
    if (range.empty())
        return;
    auto const next = std::ranges::lower_bound(ranges_, range.begin, {}, &byte_range::begin);
    auto place = ranges_.insert(next, range);
    if (place + 1 != ranges_.end() && place->end == (place + 1)->begin) {
        place->end = (place + 1)->end;
        place = ranges_.erase(place + 1) - 1;
    }
    if (place != ranges_.begin() && (place - 1)->end == place->begin) {
        (place - 1)->end = place->end;
        ranges_.erase(place);
    }
}

byte_range fetch_plan::take(std::uint64_t at_most)
{
    if (ranges_.empty())
        return {};
    auto& first = ranges_.front();
    byte_range const taken{first.begin, first.begin + std::min(first.size(), at_most)};
    first.begin = taken.end;
    if (first.empty())
        ranges_.erase(ranges_.begin());
    return taken;
}

std::vector<byte_range> fetch_plan::take_within(byte_range range)
{
    std::vector<byte_range> taken;
    std::vector<byte_range> left;
    for (auto const& each : ranges_) {
        byte_range const both{std::max(each.begin, range.begin), std::min(each.end, range.end)};
        if (both.begin >= both.end) {
            left.push_back(each);
            continue;
        }
        taken.push_back(both);
        if (each.begin < both.begin)
            left.push_back({each.begin, both.begin});
        if (both.end < each.end)
            left.push_back({both.end, each.end});
    }
    ranges_ = std::move(left);
    return taken;
}

std::uint64_t fetch_plan::size() const noexcept
{
    return std::accumulate(ranges_.begin(), ranges_.end(), std::uint64_t{0},
                           [](std::uint64_t sum, byte_range const& each) { return sum + each.size(); });
}

bool placement_map::assign(std::span<placement const> placements, std::uint64_t size)
{
    placements_.assign(placements.begin(), placements.end());
    std::erase_if(placements_, [](placement const& each) { return each.destination.empty(); });
    std::ranges::sort(placements_, {}, &placement::offset);
    std::uint64_t end = 0;
    for (auto const& each : placements_) {
        if (each.offset < end || each.offset > size || each.destination.size() > size - each.offset)
            return false;
        end = each.offset + each.destination.size();
    }
    return true;
}

device_span placement_map::find(std::uint64_t at, std::uint64_t at_most) const noexcept
{
    auto const beyond = std::ranges::upper_bound(placements_, at, {}, &placement::offset);
    assert(beyond != placements_.begin());
    auto const& found = *(beyond - 1);
    auto const skipped = at - found.offset;
    assert(skipped < found.destination.size());
    return found.destination.subspan(skipped, std::min<std::uint64_t>(found.destination.size() - skipped, at_most));
}

}  // namespace gpurx::ingest::detail
