// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of a gather cost, counted where their PTX is interpreted: a line for each kernel and kind of piece,
// as "KERNEL KIND FIGURE VALUE". One warp takes the pieces; what a launch takes beside them is left out, as the
// difference of a launch with many and one with one.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "gather_launch.hpp"

namespace {

using ptx::counters;
using ptx::test::gather_launch;
using ptx::test::sm_100;
using ptx::test::sm_80;
using ptx::test::sm_90;

struct kind {
    char const* name;
    unsigned size;
    unsigned from;  // where the sources begin within 16 bytes
    unsigned to;    // and the destination
};

// The packed ones, as frames lie in a ring: the destination of each is aligned in another way.
constexpr kind kinds[] = {{"4096-aligned", 4096, 0, 0},   {"4096-shifted", 4096, 5, 0}, {"4096-odd", 4096, 5, 3},
                          {"65536-aligned", 65536, 0, 0}, {"65536-odd", 65536, 5, 3},   {"1448-packed", 1448, 2, 0}};

// The library cuts what is longer than a piece may be; what is shorter is one piece.
constexpr unsigned warps = 8;
constexpr unsigned longest_piece = 8192;

struct variant {
    char const* name;
    bool with_crc;
    unsigned gpu;
};

constexpr variant variants[] = {{"plain-80", false, sm_80}, {"crc-80", true, sm_80},      {"plain-90", false, sm_90},
                                {"crc-90", true, sm_90},    {"plain-100", false, sm_100}, {"crc-100", true, sm_100}};

counters run(kind const& what, unsigned pieces, variant const& by)
{
    std::mt19937 random{what.size};
    gather_launch gather{std::size_t{what.size} * pieces, what.to, by.gpu};
    for (unsigned i = 0; i < pieces; ++i) {
        std::vector<std::uint8_t> bytes(what.size);
        std::ranges::generate(bytes, [&] { return static_cast<std::uint8_t>(random()); });
        gather.add(bytes, what.from);
    }
    if (what.size > longest_piece)
        gather.cut(warps);
    auto const done = gather.run(by.with_crc, 1);
    if (done.fault || !done.violations.empty() || !std::ranges::equal(gather.destination(), gather.expected())) {
        std::fprintf(stderr, "gather_bench: %s: the gather went wrong: %s\n", what.name,
                     done.fault.value_or("other bytes").c_str());
        std::exit(1);
    }
    return done.counted;
}

void measure(kind const& what, variant const& by)
{
    constexpr unsigned few = 16;
    constexpr unsigned many = 4 * few;
    auto const less = run(what, few, by);
    auto const more = run(what, many, by);
    auto const print = [&](char const* figure, double value) {
        std::printf("%s %s %s %.3f\n", by.name, what.name, figure, value);
    };
    auto const kib = static_cast<double>(many - few) * what.size / 1024;
    auto const per_kib = [&](std::uint64_t counters::*which) {
        return static_cast<double>(more.*which - less.*which) / kib;
    };
    auto const ratio = [&](std::uint64_t counters::*part, std::uint64_t counters::*whole) {
        return static_cast<double>(more.*part - less.*part) / static_cast<double>(more.*whole - less.*whole);
    };
    print("instructions", per_kib(&counters::instructions));
    print("load-sectors", ratio(&counters::load_sectors, &counters::load_requests));
    print("store-sectors", ratio(&counters::store_sectors, &counters::store_requests));
    print("sectors-per-kib", per_kib(&counters::load_sectors) + per_kib(&counters::store_sectors));
    print("conflicts", per_kib(&counters::shared_conflicts));
    // Those of one piece by itself, with its descriptor and what the launch has to load for it.
    print("in-series", static_cast<double>(run(what, 1, by).loads_in_series));
}

}  // namespace

int main()
{
    for (auto const& by : variants)
        for (auto const& what : kinds)
            measure(what, by);
}
