// SPDX-License-Identifier: Apache-2.0
#include "slice_reads.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace gpurx::python {

namespace {

using shape = std::vector<std::uint64_t>;
using extents = std::vector<extent>;
using byte_runs = std::vector<byte_run>;

byte_runs runs_of(shape const& of, extents const& taken, unsigned bits)
{
    byte_runs runs;
    for (box all{of, taken, bits}; !all.is_done(); all.advance())
        runs.push_back(all.current());
    return runs;
}

// Three of six columns of four rows, 32 bits each: runs of 12 bytes, and 12 bytes between them.
box columns()
{
    return {shape{4, 6}, extents{{0, 4, 1}, {2, 3, 1}}, 32};
}

}  // namespace

TEST_CASE("a slice has as few runs as its bytes allow")
{
    CHECK(runs_of({4, 6}, {{0, 4, 1}, {0, 6, 1}}, 32) == byte_runs{{0, 96}});
    CHECK(runs_of({4, 6}, {{1, 2, 1}, {0, 6, 1}}, 32) == byte_runs{{24, 48}});
    CHECK(runs_of({4, 6}, {{0, 4, 1}, {2, 3, 1}}, 32) == byte_runs{{8, 12}, {32, 12}, {56, 12}, {80, 12}});
    CHECK(runs_of({4, 6}, {{0, 2, 3}, {0, 6, 1}}, 32) == byte_runs{{0, 24}, {72, 24}});
    CHECK(runs_of({4, 6}, {{1, 1, 1}, {0, 3, 2}}, 32) == byte_runs{{24, 4}, {32, 4}, {40, 4}});
    CHECK(runs_of({}, {}, 64) == byte_runs{{0, 8}});
    CHECK(runs_of({4, 6}, {{0, 0, 1}, {0, 6, 1}}, 32).empty());
}

TEST_CASE("a slice takes no element of less than a byte apart from its neighbour")
{
    CHECK(runs_of({2, 4}, {{0, 2, 1}, {0, 2, 1}}, 4) == byte_runs{{0, 1}, {2, 1}});
    CHECK_THROWS_AS((box{shape{2, 4}, extents{{0, 2, 1}, {1, 2, 1}}, 4}), std::invalid_argument);
    CHECK_THROWS_AS((box{shape{2, 4}, extents{{0, 2, 1}, {0, 1, 1}}, 4}), std::invalid_argument);
}

TEST_CASE("reads join runs that are close")
{
    auto from = columns();
    std::uint64_t to = 0;
    auto const reads = next_reads(from, to, {});
    REQUIRE(reads.size() == 1);
    CHECK(reads[0].file == byte_run{8, 84});
    CHECK(reads[0].to == 0);
    CHECK(reads[0].runs == byte_runs{{8, 12}, {32, 12}, {56, 12}, {80, 12}});
    CHECK(to == from.bytes());
    CHECK(next_reads(from, to, {}).empty());
}

TEST_CASE("reads leave runs alone across a gap that is too large")
{
    auto from = columns();
    std::uint64_t to = 0;
    auto const reads = next_reads(from, to, {.gap = 11});
    REQUIRE(reads.size() == 4);
    for (std::uint64_t i = 0; i < reads.size(); ++i) {
        CHECK(reads[i].file == byte_run{8 + 24 * i, 12});
        CHECK(reads[i].to == 12 * i);
        CHECK(reads[i].runs.empty());
    }
}

TEST_CASE("reads that join runs are of a limited size")
{
    auto from = columns();
    std::uint64_t to = 0;
    auto const reads = next_reads(from, to, {.read = 40});
    REQUIRE(reads.size() == 2);
    CHECK(reads[0].file == byte_run{8, 36});
    CHECK(reads[1].file == byte_run{56, 36});
    CHECK(reads[1].to == 24);
}

TEST_CASE("reads stop at the limits of memory and of runs, and go on from there")
{
    for (auto const& limits : {slice_limits{.memory = 1}, slice_limits{.runs = 2}}) {
        auto from = columns();
        std::uint64_t to = 0;
        CHECK(next_reads(from, to, limits).front().runs.size() == 2);
        CHECK(to == 24);
        auto const rest = next_reads(from, to, limits);
        REQUIRE(rest.size() == 1);
        CHECK(rest[0].file == byte_run{56, 36});
        CHECK(rest[0].to == 24);
        CHECK(from.is_done());
    }
}

}  // namespace gpurx::python
