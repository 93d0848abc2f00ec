// SPDX-License-Identifier: Apache-2.0
#include "fetch_plan.hpp"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

namespace gpurx::ingest::detail {

namespace {

std::uint64_t down(std::uint64_t at, std::uint64_t block) noexcept
{
    return at / block * block;
}

std::uint64_t up(std::uint64_t at, std::uint64_t block) noexcept
{
    return down(at + block - 1, block);
}

}  // namespace

void fetch_plan::add(byte_range range)
{
    if (range.empty())
        return;
    if (range.begin > added_to_)
        gaps_.emplace_hint(gaps_.end(), added_to_, range.begin);
    added_to_ = range.end;
    put(range);
}

void fetch_plan::put(byte_range range)
{
    if (range.empty())
        return;
    size_ += range.size();
    auto next = ends_.upper_bound(range.begin);
    if (next != ends_.begin()) {
        if (auto const last = std::prev(next); last->second == range.begin) {
            range.begin = last->first;
            ends_.erase(last);
        }
    }
    if (next != ends_.end() && next->first == range.end) {
        range.end = next->second;
        next = ends_.erase(next);
    }
    ends_.emplace_hint(next, range.begin, range.end);
}

fetch_plan::iterator fetch_plan::cut(iterator range, std::uint64_t end)
{
    auto const [begin, old_end] = *range;
    size_ -= end - begin;
    auto const next = ends_.erase(range);
    return end == old_end ? next : ends_.emplace_hint(next, end, old_end);
}

bool fetch_plan::are_joined(std::uint64_t end, std::uint64_t begin, std::uint64_t gap) const
{
    if (begin == end)
        return true;
    auto const found = gaps_.find(end);
    return found != gaps_.end() && found->second == begin && begin - end <= gap;
}

fetch_piece fetch_plan::take(std::uint64_t at_most, std::uint64_t gap)
{
    fetch_piece taken;
    if (ends_.empty() || at_most == 0)
        return taken;
    auto const first = ends_.begin()->first;
    auto const limit = first + std::min(at_most, UINT64_MAX - first);
    taken.asked = {first, first};
    for (auto next = ends_.begin(); next != ends_.end();) {
        auto const [begin, end] = *next;
        if (begin >= limit || !are_joined(taken.asked.end, begin, gap))
            break;
        taken.asked.end = std::min(end, limit);
        taken.wanted.push_back({begin, taken.asked.end});
        next = cut(next, taken.asked.end);
    }
    return taken;
}

std::deque<byte_range> fetch_plan::take_within(byte_range range)
{
    std::deque<byte_range> taken;
    if (range.empty())
        return taken;
    auto next = ends_.lower_bound(range.begin);
    if (next != ends_.begin()) {
        if (auto const last = std::prev(next); last->second > range.begin)
            next = ends_.emplace_hint(next, range.begin, std::exchange(last->second, range.begin));
    }
    while (next != ends_.end() && next->first < range.end) {
        taken.push_back({next->first, std::min(next->second, range.end)});
        next = cut(next, taken.back().end);
    }
    return taken;
}

std::vector<byte_range> fetch_plan::ranges() const
{
    std::vector<byte_range> all;
    for (auto const& [begin, end] : ends_)
        all.push_back({begin, end});
    return all;
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

memory_span placement_map::find(std::uint64_t at, std::uint64_t at_most) const noexcept
{
    auto const beyond = std::ranges::upper_bound(placements_, at, {}, &placement::offset);
    assert(beyond != placements_.begin());
    auto const& found = *(beyond - 1);
    auto const skipped = at - found.offset;
    assert(skipped < found.destination.size());
    return found.destination.subspan(skipped, std::min<std::uint64_t>(found.destination.size() - skipped, at_most));
}

byte_range blocks_around(byte_range bytes, std::uint64_t block) noexcept
{
    return {down(bytes.begin, block), up(bytes.end, block)};
}

byte_range end_with_block(fetch_piece& piece, std::uint64_t block) noexcept
{
    auto& last = piece.wanted.back();
    auto const end = down(last.end, block);
    if (end <= last.begin)
        return {};
    byte_range const rest{end, last.end};
    last.end = piece.asked.end = end;
    return rest;
}

std::optional<read_in_place> split_in_place(byte_range bytes, std::uintptr_t address, read_alignment needed) noexcept
{
    byte_range const blocks{up(bytes.begin, needed.offset), down(bytes.end, needed.offset)};
    if (blocks.begin >= blocks.end || (address + (blocks.begin - bytes.begin)) % needed.memory != 0)
        return std::nullopt;
    return read_in_place{{bytes.begin, blocks.begin}, blocks, {blocks.end, bytes.end}};
}

}  // namespace gpurx::ingest::detail
