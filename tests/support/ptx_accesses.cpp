// SPDX-License-Identifier: Apache-2.0
//
// What instructions do with memory.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>

#include "ptx_execution.hpp"

namespace ptx::inside {

std::byte* machine::find(block& in, warp const& of, instruction const& what, access const& one, bool store)
{
    if (what.where == space::shared)
        return in.shared.find(one, store, of.index);
    return memory_.find(one);
}

void machine::count(instruction const& what, std::span<access const> accesses)
{
    if (accesses.empty())
        return;
    auto& all = report_.counted;
    if (what.where == space::shared) {
        ++all.shared_requests;
        all.shared_conflicts += conflicts_of(accesses);
    } else if (what.does == action::load) {
        ++all.load_requests;
        all.load_sectors += sectors_of(accesses);
    } else {
        ++all.store_requests;
        all.store_sectors += sectors_of(accesses);
    }
}

namespace {

// Unseen by TSan. A kernel loads whole vectors, with bytes beside its own that others write meanwhile, and does not use
// those (gather_piece.hpp).
__attribute__((noinline, no_sanitize("thread"))) void read_unseen(unsigned char* to, unsigned char const volatile* from,
                                                                  unsigned size)
{
    for (unsigned i = 0; i < size; ++i)
        to[i] = from[i];
}

std::uint64_t read_bytes(std::byte const* from, instruction const& what)
{
    std::uint64_t bits = 0;
    read_unseen(reinterpret_cast<unsigned char*>(&bits), reinterpret_cast<unsigned char const*>(from), what.width);
    auto const unused = 64 - what.width * 8;
    return what.is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << unused) >> unused) : bits;
}

}  // namespace

void machine::load(block& in, warp& of, instruction const& what, lane_mask active)
{
    std::array<lanes, 4> values;
    auto const size = what.width * static_cast<unsigned>(what.out.size());
    auto const addresses = value(of, what.in[0], active);
    std::array<access, warp_lanes> accesses;
    auto end = accesses.begin();
    if (!what.in[0].is_constant)
        need(of, what.in[0].index);
    for_lanes(active, [&](unsigned lane) {
        access const one{addresses[lane] + static_cast<std::uint64_t>(what.offset), size};
        std::byte const* from = nullptr;
        if (what.where == space::parameter) {
            if (one.address > how_.parameters.size() || size > how_.parameters.size() - one.address)
                throw fault{"beyond the parameters"};
            from = &how_.parameters[one.address];
        } else {
            from = find(in, of, what, one, false);
            *end++ = one;
        }
        for (std::size_t i = 0; i < what.out.size(); ++i)
            values[i][lane] = read_bytes(from + i * what.width, what);
    });
    count(what, {accesses.begin(), end});
    auto const waits = what.where == space::global && active != 0;
    if (waits) {
        of.loads_in_series = std::max(of.loads_in_series, of.time + 1);
        report_.counted.loads_in_series = std::max<std::uint64_t>(report_.counted.loads_in_series, of.loads_in_series);
    }
    for (std::size_t i = 0; i < what.out.size(); ++i)
        set(of, what.out[i], active, values[i], of.time + (waits ? 1 : 0));
}

void machine::store(block& in, warp& of, instruction const& what, lane_mask active)
{
    auto const elements = what.in.size() - 1;
    auto const size = what.width * static_cast<unsigned>(elements);
    for (auto const& from : what.in)
        if (!from.is_constant)
            need(of, from.index);
    auto const& addresses = value(of, what.in[0], active);
    std::array<lanes const*, 4> values{};
    for (std::size_t i = 0; i < elements; ++i)
        values[i] = &value(of, what.in[i + 1], active);
    std::array<access, warp_lanes> accesses;
    auto end = accesses.begin();
    for_lanes(active, [&](unsigned lane) {
        access const one{addresses[lane] + static_cast<std::uint64_t>(what.offset), size};
        auto* const to = find(in, of, what, one, true);
        *end++ = one;
        if (what.where == space::global && !memory_.note_store(one) && report_.violations.size() < 10)
            report_.violations.push_back(code_.name + ", line " + std::to_string(what.line) + ": the bytes at " +
                                         std::to_string(one.address) + " are written a second time");
        for (std::size_t i = 0; i < elements; ++i)
            std::memcpy(to + i * what.width, &(*values[i])[lane], what.width);
    });
    count(what, {accesses.begin(), end});
}

// One lane after the other.
void machine::atomic(block& in, warp& of, instruction const& what, lane_mask active)
{
    for (auto const& from : what.in)
        if (!from.is_constant)
            need(of, from.index);
    auto const addresses = value(of, what.in[0], active);
    auto const operands = value(of, what.in[1], active);
    lanes before{};
    for_lanes(active, [&](unsigned lane) {
        access const one{addresses[lane] + static_cast<std::uint64_t>(what.offset), what.width};
        auto* const at = find(in, of, what, one, false);
        before[lane] = read_bytes(at, what);
        lanes old;
        lanes with;
        lanes result;
        old.fill(before[lane]);
        with.fill(operands[lane]);
        if (what.combine == nullptr)
            result[0] = read_bytes(reinterpret_cast<std::byte const*>(&with[0]), what) == before[lane]
                            ? value(of, what.in[2], active)[lane]
                            : before[lane];
        else
            what.combine(result, what.exchanges ? inputs{&with} : inputs{&old, &with});
        if (what.where == space::shared)
            static_cast<void>(find(in, of, what, one, true));
        std::memcpy(at, &result[0], what.width);
        ++report_.counted.atomics;
    });
    if (!what.out.empty())
        set(of, what.out[0], active, before, of.time + (what.where == space::global ? 1 : 0));
}

}  // namespace ptx::inside
