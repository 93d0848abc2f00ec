// SPDX-License-Identifier: Apache-2.0
//
// Flows of every number and size, by every way, with every byte compared.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <map>

#include "bed.hpp"
#include "nic.hpp"

using namespace gpurx::lab;

namespace {

struct load {
    unsigned flows;
    std::uint64_t bytes;
};

// Few flows carry much, many carry little: the whole stays within minutes on an emulated machine.
constexpr load loads[] = {
    {1, 1},
    {1, 4095},
    {1, 65'537},
    {1, mebibyte},
    {1, 64 * mebibyte},
    {2, 8 * mebibyte},
    {4, 1},
    {8, 100'000},
    {8, 2 * mebibyte + 1},
    {16, 500'000},
    {64, 1},
    {64, 4097},
    {64, mebibyte},
};

char const* name_of(way how)
{
    return how == way::read ? "read" : "loan";
}
char const* name_of(family version)
{
    return version == family::v4 ? "v4" : "v6";
}
char const* name_of(role what)
{
    return what == role::accepts ? "accepting" : "connecting";
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "streams arrive whole and in device memory", "[transfer]")
{
    auto const version = GENERATE(family::v4, family::v6);
    auto const what = GENERATE(role::accepts, role::connects);
    auto const how = GENERATE(way::read, way::loan);

    auto session = open_session(64 * mebibyte, {.rx_queues = 2, .max_flows = 64});
    std::uint64_t seed = 1;
    for (auto const& [flows, bytes] : loads) {
        std::vector<stream> streams;
        for (unsigned i = 0; i < flows; ++i)
            streams.push_back({.seed = seed++, .bytes = bytes});
        auto outcomes = transfer(session, streams, version, how, what);
        CAPTURE(name_of(version), name_of(what), name_of(how), flows, bytes);
        std::ranges::sort(outcomes, {}, [](outcome const& result) { return result.what.seed; });
        for (unsigned i = 0; i < flows; ++i) {
            INFO(outcomes[i]);
            CHECK(outcomes[i].what.seed == streams[i].seed);
            CHECK(intact(outcomes[i], bytes));
            CHECK(outcomes[i].stats.device_bytes == bytes + 8);
        }
    }
    fmt::print("{} {} {}: {} bytes, most pages on loan {}\n", name_of(version), name_of(what), name_of(how),
               session.stats().bytes(), session.stats().tokens_high_water);
    CHECK(session.stats().host_bytes == 0);
    CHECK(session.stats().tokens_out == 0);
}

TEST_CASE_METHOD(unchanged_nic, "frames arrive whole, their headers on the host and their bodies on loan",
                 "[smoke][transfer]")
{
    auto session = open_session(64 * mebibyte, {.rx_queues = 2, .max_flows = 4});
    auto const outcomes =
        transfer(session, {{3, 8 * mebibyte}, {4, 8 * mebibyte}}, family::v4, way::frames, role::accepts);
    for (auto const& result : outcomes) {
        INFO(result);
        CHECK(intact(result, 8 * mebibyte));
    }
    CHECK(session.stats().host_bytes == 0);
    CHECK(session.stats().tokens_out == 0);
}

TEST_CASE_METHOD(unchanged_nic, "pages larger than 4 KiB carry the stream in fewer pieces", "[smoke][transfer]")
{
    if (!kernel_has_page_sizes())
        SKIP("bind-rx takes a page size since Linux 7.3");
    std::map<std::uint32_t, std::uint64_t> fragments;
    for (std::uint32_t const page : {0U, 16384U, 65536U}) {
        REQUIRE(pools_vanish());  // and the huge pages of the session before are free
        auto session = open_session(64 * mebibyte, {.rx_page_size = page, .max_flows = 2});
        auto const outcomes = transfer(session, {{7, 8 * mebibyte}}, family::v4, way::loan, role::accepts);
        INFO(outcomes[0]);
        CHECK(intact(outcomes[0], 8 * mebibyte));
        fragments[page] = session.stats().fragments;
    }
    CHECK(fragments[16384] < fragments[0]);
    CHECK(fragments[65536] <= fragments[16384]);
}
