// SPDX-License-Identifier: Apache-2.0
//
// What instructions do with registers, and lanes with each other's.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>

#include "ptx_execution.hpp"

namespace ptx::inside {

// ---- registers ----

lanes const& machine::value(warp const& of, operand const& from, lane_mask active)
{
    if (from.is_constant)
        return constants_[from.index];
    if ((active & ~of.written[from.index]) != 0)
        throw fault{code_.registers[from.index].name + " is read and was not written"};
    return of.registers[from.index];
}

void machine::set(warp& of, std::uint32_t to, lane_mask active, lanes const& values, std::uint32_t ready)
{
    if (to == instruction::nowhere)
        return;
    auto& into = of.registers[to];
    if (active == ~lane_mask{})
        into = values;
    else
        for_lanes(active, [&](unsigned lane) { into[lane] = values[lane]; });
    of.written[to] |= active;
    of.ready[to] = ready;
}

void machine::compute(warp& of, instruction const& what, lane_mask active)
{
    inputs in{};
    for (std::size_t i = 0; i < what.in.size(); ++i) {
        in[i] = &value(of, what.in[i], active);
        if (!what.in[i].is_constant)
            need(of, what.in[i].index);
    }
    auto const to = what.out[0];
    if (active == ~lane_mask{} && to != instruction::nowhere) {
        what.combine(of.registers[to], in);
        of.written[to] = active;
        of.ready[to] = of.time;
        return;
    }
    lanes result;
    what.combine(result, in);
    set(of, to, active, result, of.time);
}

void machine::pack(warp& of, instruction const& what, lane_mask active)
{
    lanes result{};
    for (std::size_t i = 0; i < what.in.size(); ++i) {
        auto const& part = value(of, what.in[i], active);
        if (!what.in[i].is_constant)
            need(of, what.in[i].index);
        auto const bits = what.width * 8;
        for (unsigned lane = 0; lane < warp_lanes; ++lane)
            result[lane] |= (part[lane] & ((std::uint64_t{1} << bits) - 1)) << bits * i;
    }
    set(of, what.out[0], active, result, of.time);
}

void machine::unpack(warp& of, instruction const& what, lane_mask active)
{
    if (!what.in[0].is_constant)
        need(of, what.in[0].index);
    auto const whole = value(of, what.in[0], active);
    for (std::size_t i = 0; i < what.out.size(); ++i) {
        lanes part{};
        for (unsigned lane = 0; lane < warp_lanes; ++lane)
            part[lane] = whole[lane] >> what.width * 8 * i;
        set(of, what.out[i], active, part, of.time);
    }
}

// Nanoseconds, by the computer's clock.
void machine::read_time(warp& of, instruction const& what, lane_mask active)
{
    auto const now = std::chrono::steady_clock::now().time_since_epoch();
    lanes result;
    result.fill(static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
    set(of, what.out[0], active, result, of.time);
}

// ---- lanes among each other ----

void machine::shuffle(warp& of, instruction const& what, lane_mask active)
{
    for (auto const& from : what.in)
        if (!from.is_constant)
            need(of, from.index);
    auto const values = value(of, what.in[0], active);
    auto const& choices = value(of, what.in[1], active);
    auto const& limits = value(of, what.in[2], active);
    lanes result{};
    lanes inside_limits{};
    for_lanes(active, [&](unsigned lane) {
        auto const choice = static_cast<unsigned>(choices[lane]) & 31;
        auto const segment = static_cast<unsigned>(limits[lane] >> 8) & 31;
        auto const most = (lane & segment) | (static_cast<unsigned>(limits[lane]) & 31 & ~segment);
        auto const least = lane & segment;
        auto from = lane;
        auto good = true;
        switch (what.shuffles) {
            case shuffle_mode::from:
                from = least | (choice & ~segment);
                break;
            case shuffle_mode::up:
                from = lane - choice;
                break;
            case shuffle_mode::down:
                from = lane + choice;
                break;
            case shuffle_mode::exchange:
                from = lane ^ choice;
                break;
        }
        good = what.shuffles == shuffle_mode::up ? lane >= choice && from >= most : from <= most;
        if (!good)
            from = lane;
        if ((active & bit_of(from)) == 0)
            throw fault{"lane " + std::to_string(lane) + " takes from lane " + std::to_string(from) +
                        ", which is not there"};
        result[lane] = values[from];
        inside_limits[lane] = good ? 1 : 0;
    });
    set(of, what.out[0], active, result, of.time);
    set(of, what.out[1], active, inside_limits, of.time);
}

void machine::reduce(warp& of, instruction const& what, lane_mask active)
{
    if (active == 0)
        return;
    if (!what.in[0].is_constant)
        need(of, what.in[0].index);
    auto const& values = value(of, what.in[0], active);
    lanes sum{};
    auto first = true;
    for_lanes(active, [&](unsigned lane) {
        lanes next;
        next.fill(values[lane]);
        if (first)
            sum = next;
        else
            what.combine(sum, {&sum, &next});
        first = false;
    });
    set(of, what.out[0], active, sum, of.time);
}

void machine::vote(warp& of, instruction const& what, lane_mask active)
{
    if (!what.in[0].is_constant)
        need(of, what.in[0].index);
    auto const& values = value(of, what.in[0], active);
    lane_mask ayes = 0;
    for_lanes(active, [&](unsigned lane) { ayes |= values[lane] != 0 ? bit_of(lane) : 0; });
    lanes result;
    switch (what.votes) {
        case vote_mode::all:
            result.fill(ayes == active ? 1 : 0);
            break;
        case vote_mode::any:
            result.fill(ayes != 0 ? 1 : 0);
            break;
        case vote_mode::ballot:
            result.fill(ayes);
            break;
    }
    set(of, what.out[0], active, result, of.time);
}

// Words of 32 bits of a matrix: lane 4g + t has words t and t + 4 of rows g and g + 8 (the first matrix), or of column
// g (the second), and of the sums columns 2t and 2t + 1 of rows g and g + 8.
void machine::multiply_bits(warp& of, instruction const& what, lane_mask active)
{
    if (active != of.first_lanes || active != ~lane_mask{})
        throw fault{"not for all lanes"};
    std::array<lanes const*, 10> in{};
    for (std::size_t i = 0; i < in.size(); ++i) {
        in[i] = &value(of, what.in[i], active);
        if (!what.in[i].is_constant)
            need(of, what.in[i].index);
    }
    std::array<lanes, 4> sums;
    for (std::size_t i = 0; i < sums.size(); ++i) {
        auto const lower = i / 2;  // whether the row is one of the second eight
        for (unsigned lane = 0; lane < warp_lanes; ++lane) {
            auto const row = lane / 4;
            auto const column = lane % 4 * 2 + i % 2;
            auto sum = (*in[6 + i])[lane];
            for (unsigned word = 0; word < 8; ++word) {
                auto const bits =
                    (*in[word / 4 * 2 + lower])[row * 4 + word % 4] & (*in[4 + word / 4])[column * 4 + word % 4];
                sum += static_cast<std::uint64_t>(std::popcount(static_cast<std::uint32_t>(bits)));
            }
            sums[i][lane] = sum;
        }
    }
    for (std::size_t i = 0; i < sums.size(); ++i)
        set(of, what.out[i], active, sums[i], of.time);
}

}  // namespace ptx::inside
