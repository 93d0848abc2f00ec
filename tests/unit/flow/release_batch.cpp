// SPDX-License-Identifier: Apache-2.0
#include "flow/loan.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace gpurx::detail {

static std::ostream& operator<<(std::ostream& out, token_range const& range)
{
    return out << range.first << '+' << range.count;
}

namespace {

using ranges = std::vector<token_range>;

ranges taken(release_batch& from)
{
    token_batch batch;
    from.take(batch);
    ranges result;
    std::size_t pages = 0;
    for (auto const& token : batch.used()) {
        result.push_back({token.token_start, token.token_count});
        pages += token.token_count;
    }
    CHECK(batch.pages == pages);
    CHECK(batch.entries <= uapi::max_dontneed_entries);
    CHECK(batch.pages <= uapi::max_dontneed_pages);
    return result;
}

// What the kernel gets, call by call, when all of `given` goes back.
std::vector<ranges> calls_for(ranges const& given)
{
    release_batch gathered;
    std::vector<ranges> calls;
    for (auto range : given)
        for (range = gathered.add(range); range.count > 0; range = gathered.add(range))
            calls.push_back(taken(gathered));
    if (!gathered.empty())
        calls.push_back(taken(gathered));
    CHECK(gathered.empty());
    return calls;
}

// Every other number: nothing to join.
ranges scattered(std::uint32_t count)
{
    ranges result;
    for (std::uint32_t i = 0; i < count; ++i)
        result.push_back({1 + 2 * i, 1});
    return result;
}

ranges part(ranges const& of, std::size_t from, std::size_t to)
{
    return {of.begin() + static_cast<std::ptrdiff_t>(from), of.begin() + static_cast<std::ptrdiff_t>(to)};
}

}  // namespace

TEST_CASE("tokens go back in calls that the kernel takes")
{
    struct scenario {
        std::string name;
        ranges given;
        std::vector<ranges> calls;
    };
    auto const many = scattered(300);
    std::vector<scenario> const scenarios{
        {"nothing", {}, {}},
        {"one", {{5, 1}}, {{{5, 1}}}},
        {"neighbours are joined", {{5, 1}, {6, 1}, {7, 3}}, {{{5, 5}}}},
        {"a gap is not", {{5, 1}, {7, 1}}, {{{5, 1}, {7, 1}}}},
        {"descending numbers are joined as well", {{7, 1}, {6, 1}, {2, 4}, {8, 1}}, {{{2, 7}}}},
        {"not with a gap", {{7, 1}, {5, 1}}, {{{7, 1}, {5, 1}}}},
        {"a range that overlaps stays one of its own", {{5, 3}, {3, 3}}, {{{5, 3}, {3, 3}}}},
        {"split before joining from below", {{1001, 1000}, {1, 1000}}, {{{1001, 1000}, {1, 24}}, {{25, 976}}}},
        {"the same number twice stays twice", {{7, 1}, {7, 1}}, {{{7, 1}, {7, 1}}}},
        {"only the last entry is joined", {{1, 1}, {5, 1}, {2, 1}}, {{{1, 1}, {5, 1}, {2, 1}}}},
        {"nothing of nothing", {{5, 0}}, {}},
        {"exactly the most pages", {{1, 1024}}, {{{1, 1024}}}},
        {"one page more", {{1, 1025}}, {{{1, 1024}}, {{1025, 1}}}},
        {"a long range is split", {{1, 3000}}, {{{1, 1024}}, {{1025, 1024}}, {{2049, 952}}}},
        {"split behind others", {{5000, 1000}, {1, 100}}, {{{5000, 1000}, {1, 24}}, {{25, 76}}}},
        {"split while joining", {{1, 1000}, {1001, 100}}, {{{1, 1024}}, {{1025, 76}}}},
        {"as many entries as a call takes", part(many, 0, 128), {part(many, 0, 128)}},
        {"one entry more", part(many, 0, 129), {part(many, 0, 128), part(many, 128, 129)}},
        {"three calls", many, {part(many, 0, 128), part(many, 128, 256), part(many, 256, 300)}},
        {"the largest numbers", {{0x7fffffff, 1}, {0xffffffff, 1}}, {{{0x7fffffff, 1}, {0xffffffff, 1}}}},
        {"xarray tokens are joined as array tokens are", {{0x78000005, 1}, {0x78000006, 2}}, {{{0x78000005, 3}}}},
        {"a long range of them", {{0xfffff800, 2048}}, {{{0xfffff800, 1024}}, {{0xfffffc00, 1024}}}},
        {"the two kinds have a number between them, which is neither",
         {{0x77ffffff, 1}, {0x78000001, 1}},
         {{{0x77ffffff, 1}, {0x78000001, 1}}}},
        {"so do two memories", {{0x0fffffff, 1}, {0x10000001, 1}}, {{{0x0fffffff, 1}, {0x10000001, 1}}}},
    };
    for (auto const& [name, given, calls] : scenarios) {
        INFO(name);
        CHECK(calls_for(given) == calls);
    }
}

TEST_CASE("a full batch still takes what its last entry goes on with")
{
    release_batch gathered;
    for (auto const& range : scattered(128))
        REQUIRE(gathered.add(range).count == 0);
    auto const next = scattered(128).back().first + 1;
    CHECK(gathered.add({next, 10}) == token_range{next + 10, 0});
    CHECK(gathered.add({1, 1}) == token_range{1, 1});
    CHECK(taken(gathered).back() == token_range{next - 1, 11});
}

TEST_CASE("a new batch does not join entries of the one before")
{
    release_batch gathered;
    REQUIRE(gathered.add({5, 1}).count == 0);
    REQUIRE(taken(gathered) == ranges{{5, 1}});
    CHECK(gathered.empty());
    REQUIRE(gathered.add({6, 1}).count == 0);
    CHECK(taken(gathered) == ranges{{6, 1}});
}

namespace {

// What is likely to come behind `last`: a neighbour, the same again, or any of either kind.
std::uint32_t next_token(std::mt19937& random, std::uint32_t last)
{
    auto const any = static_cast<std::uint32_t>(random() % 100000);
    switch (random() % 5) {
        case 0:
            return any;
        case 1:
            return last;
        case 2:
            return (std::uint32_t{7} + static_cast<std::uint32_t>(random() % 2)) << 28 | any;
        case 3:
            return last - 1;
        default:
            return last + 1;
    }
}

}  // namespace

TEST_CASE("each token is returned to the kernel as often as it was given")
{
    std::mt19937 random{1};
    for (int round = 0; round < 60; ++round) {
        ranges given;
        std::vector<std::uint32_t> expected;
        for (auto n = random() % 400; n > 0; --n) {
            auto const first = next_token(random, expected.empty() ? 0 : expected.back());
            auto const count = static_cast<std::uint32_t>(random() % 8 == 0 ? random() % 3000 : random() % 4);
            given.push_back({first, count});
            for (std::uint32_t i = 0; i < count; ++i)
                expected.push_back(first + i);
        }
        std::vector<std::uint32_t> seen;
        for (auto const& call : calls_for(given))
            for (auto const& range : call)
                for (std::uint32_t i = 0; i < range.count; ++i)
                    seen.push_back(range.first + i);
        std::ranges::sort(seen);
        std::ranges::sort(expected);
        REQUIRE(seen == expected);
    }
}

}  // namespace gpurx::detail
