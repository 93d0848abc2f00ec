// SPDX-License-Identifier: Apache-2.0
//
// The library's kernels as the compiler wrote them, against memcpy and a CRC32C bit by bit.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <random>
#include <string>

#include "gather_launch.hpp"
#include "gather_on_cpu.hpp"

namespace ptx::test {

namespace {

std::vector<std::uint8_t> random_bytes(std::size_t size, std::mt19937& random)
{
    std::vector<std::uint8_t> bytes(size);
    std::ranges::generate(bytes, [&] { return static_cast<std::uint8_t>(random()); });
    return bytes;
}

// Runs it, and returns what it took.
counters check(gather_launch& what, bool with_crc, unsigned blocks = 1, std::optional<std::uint64_t> seed = {})
{
    auto const done = what.run(with_crc, blocks, seed);
    INFO("fault: " << done.fault.value_or("none"));
    INFO("violation: " << (done.violations.empty() ? "none" : done.violations.front()));
    REQUIRE_FALSE(done.fault);
    REQUIRE(done.violations.empty());
    REQUIRE(std::ranges::equal(what.destination(), what.expected()));
    if (with_crc) {
        REQUIRE(what.crc() == gpurx::test::reference_crc32c(what.expected()));
        REQUIRE(what.state_is_clear());
    }
    return done.counted;
}

void check_alignments(unsigned gpu)
{
    std::mt19937 random{1};
    for (unsigned from = 0; from < 16; ++from)
        for (unsigned to = 0; to < 16; ++to)
            for (auto const size :
                 {1U, 2U, 3U, 15U, 16U, 17U, 31U, 33U, 511U, 512U, 513U, 1000U, 1448U, 2000U, 4096U}) {
                auto const bytes = random_bytes(size, random);
                for (auto const with_crc : {false, true}) {
                    INFO(size << " bytes from " << from << " to " << to);
                    gather_launch what{size, to, gpu};
                    what.add(bytes, from);
                    check(what, with_crc);
                }
            }
}

void check_in_place(unsigned gpu)
{
    std::mt19937 random{3};
    for (unsigned to = 0; to < 16; ++to)
        for (auto const size : {1U, 15U, 17U, 100U, 2100U})
            for (auto const with_crc : {false, true}) {
                gather_launch what{3 * std::size_t{size}, to, gpu};
                what.add(random_bytes(size, random), to / 2);
                what.add_in_place(random_bytes(size, random));
                what.add(random_bytes(size, random), 15 - to);
                check(what, with_crc);
            }
}

void check_far_from_the_end(unsigned gpu)
{
    std::mt19937 random{5};
    auto const bytes = random_bytes(20 << 20, random);  // with the first of eight warps more than 16 MiB from it
    gather_launch what{bytes.size(), 3, gpu};
    what.add(bytes, 0);
    what.cut(8);
    check(what, true);
}

}  // namespace

TEST_CASE("the kernels' PTX copies a piece byte for byte at each pair of alignments, and sums it up", "[long]")
{
    auto const gpu = GENERATE(sm_80, sm_90, sm_100);
    check_alignments(gpu);
}

TEST_CASE("the kernels' PTX leaves a piece alone that lies in its place")
{
    auto const gpu = GENERATE(sm_80, sm_90, sm_100);
    check_in_place(gpu);
}

TEST_CASE("the kernels' PTX weighs bytes far from the end", "[long]")
{
    auto const gpu = GENERATE(sm_80, sm_90, sm_100);
    check_far_from_the_end(gpu);
}

TEST_CASE("the kernels' PTX gathers batches in blocks that run one after the other, and in any order")
{
    auto const gpu = GENERATE(sm_80, sm_90, sm_100);
    std::mt19937 random{2};
    for (unsigned round = 0; round < 60; ++round) {
        std::vector<std::vector<std::uint8_t>> fragments(1 + random() % 60);
        std::size_t all = 0;
        for (auto& one : fragments) {
            one = random_bytes(1 + random() % (random() % 2 == 0 ? 40 : 5000), random);
            all += one.size();
        }
        auto const blocks = 1 + static_cast<unsigned>(random() % 4);
        auto const to = static_cast<unsigned>(random() % 16);
        for (auto const with_crc : {false, true}) {
            gather_launch what{all, to, gpu};
            for (auto const& one : fragments)
                what.add(one, static_cast<unsigned>(random() % 16));
            what.cut(8 * blocks);
            if (round % 2 == 0)
                check(what, with_crc, blocks);
            else
                check(what, with_crc, blocks, round);
        }
    }
}

// The text with one instruction less in the kernel with a CRC: that of this name which comes after so many.
std::string without(std::string const& name, unsigned others)
{
    std::string text{library_text(sm_90)};
    auto at = text.find(".entry gpurx_gather_crc");
    for (auto left = others + 1; left > 0 && at != std::string::npos; --left)
        at = text.find('\n' + name + ' ', at + 1);
    REQUIRE(at != std::string::npos);
    return text.erase(at, text.find(';', at) - at + 1);
}

// What comes of a gather by that kernel.
std::string outcome_of(std::string const& text, std::optional<std::uint64_t> seed = {})
{
    std::mt19937 random{6};
    auto const kernels = parse(text);
    gather_launch what{9000, 3};
    for (unsigned i = 0; i < 3; ++i)
        what.add(random_bytes(3000, random), 3 - i);
    auto const done = what.run(true, 1, seed, &kernels.at("gpurx_gather_crc"));
    if (done.fault)
        return *done.fault;
    if (!done.violations.empty())
        return done.violations.front();
    auto const right = std::ranges::equal(what.destination(), what.expected()) &&
                       what.crc() == gpurx::test::reference_crc32c(what.expected()) && what.state_is_clear();
    return right ? "all right" : "other bytes";
}

TEST_CASE("a mistake in the kernels' PTX is found out")
{
    auto const is_found = [](std::string const& name, unsigned others, char const* words,
                             std::optional<std::uint64_t> seed = {}) {
        auto const outcome = outcome_of(without(name, others), seed);
        INFO("without " << name << " " << others << ": " << outcome);
        CHECK(outcome.find(words) != std::string::npos);
    };
    CHECK(outcome_of(std::string{library_text(sm_90)}) == "all right");
    // The barriers behind the tables, and in front of the sum over warps.
    is_found("bar.sync", 0, "shared memory that");
    is_found("bar.sync", 1, "shared memory that");
    is_found("st.shared.v4.u32", 0, "nothing was written to");
    is_found("st.global.v4.u32", 2, "is not written");
    is_found("ld.global.v4.u32", 2, "other bytes");
    is_found("st.global.u8", 3, "is not written");
    is_found("redux.sync.xor.b32", 1, "was not written");
    is_found("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc", 8, "other bytes");
    // Lanes that have stored bytes of their own come together for the matrices: in whatever order they go on.
    is_found("bar.warp.sync", 0, "not for all lanes", 1);
    is_found("atom.global.exch.b32", 0, "was not written");
}

TEST_CASE("the executed PTX is the library's text")
{
    auto const gpu = GENERATE(sm_80, sm_100);
    CHECK_FALSE(shipped_text(gpu).empty());
    CHECK(shipped_text(gpu) == library_text(gpu));
    CHECK(library_text(gpu).find(".target sm_" + std::to_string(gpu)) != std::string_view::npos);
}

// What a GPU may do and no test has seen is not known to work.
TEST_CASE("every instruction of the kernels' PTX is executed", "[long]")
{
    auto const gpu = GENERATE(sm_80, sm_90, sm_100);
    check_alignments(gpu);
    check_in_place(gpu);
    check_far_from_the_end(gpu);
    for (auto const& [name, code] : library_kernels(gpu)) {
        for (auto const& one : never_executed(code, executed_by(name, gpu)))
            FAIL_CHECK(name << ", " << one);
    }
}

}  // namespace ptx::test
