// SPDX-License-Identifier: Apache-2.0
#include "flow/loan.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

namespace gpurx::detail {

namespace {

constexpr auto host = memory_kind::host;

std::uintptr_t address_of(std::string const& text, std::size_t offset = 0)
{
    return reinterpret_cast<std::uintptr_t>(text.data()) + offset;
}

std::string taken(loan& from, std::size_t size)
{
    std::string text(size, '?');
    auto const placed = copy_front(from, reinterpret_cast<std::byte*>(text.data()), size);
    drop(from, placed);
    text.resize(placed);
    return text;
}

std::vector<fragment> remaining(loan const& of)
{
    return {of.remaining().begin(), of.remaining().end()};
}

template <class T>
std::vector<T> all_of(reused_list<T> const& list)
{
    return {list.begin(), list.end()};
}

}  // namespace

TEST_CASE("a part of a loan has its bytes, and none of its pages")
{
    std::string const text = "abcdefghij";
    auto const at = [&](std::size_t offset, std::size_t size) {
        return fragment{address_of(text, offset), size, host};
    };
    loan whole;
    whole.append(at(0, 3));
    whole.append(at(5, 4));
    SECTION("up to the end of a fragment")
    {
        loan part;
        CHECK(pieces_of(whole, 3) == 1);
        split_front(whole, 3, part);
        CHECK(remaining(part) == std::vector{at(0, 3)});
        CHECK(remaining(whole) == std::vector{at(5, 4)});
    }
    SECTION("inside a fragment, and the part again")
    {
        loan part;
        CHECK(pieces_of(whole, 5) == 2);
        split_front(whole, 5, part);
        CHECK(remaining(part) == std::vector{at(0, 3), at(5, 2)});
        CHECK(remaining(whole) == std::vector{at(7, 2)});
        CHECK((part.bytes == 5 && whole.bytes == 2));
        loan part_of_part;
        split_front(part, 1, part_of_part);
        CHECK(remaining(part_of_part) == std::vector{at(0, 1)});
        CHECK(remaining(part) == std::vector{at(1, 2), at(5, 2)});
        CHECK(part_of_part.of == &whole);
        CHECK(whole.holders == 3);
        std::vector<loan*> seen;
        for_each_batch(part_of_part, [&](loan& batch) { seen.push_back(&batch); });
        CHECK(seen == std::vector{&whole});
    }
    std::vector<fragment> all;
    whole.for_each_original([&](fragment const& piece) { all.push_back(piece); });
    CHECK(all == std::vector{at(0, 3), at(5, 4)});
}

TEST_CASE("pieces that are adjacent in memory and in the stream are one fragment")
{
    loan record;
    SECTION("adjacent")
    {
        record.append({4096, 100, host});
        record.append({4196, 10, host});
        record.append({4206, 1, host});
        CHECK(all_of(record.fragments) == std::vector<fragment>{{4096, 111, host}});
        CHECK(record.bytes == 111);
    }
    SECTION("a gap, and one that goes back")
    {
        record.append({4096, 100, host});
        record.append({8192, 10, host});
        record.append({8182, 10, host});
        CHECK(all_of(record.fragments) == std::vector<fragment>{{4096, 100, host}, {8192, 10, host}, {8182, 10, host}});
        CHECK(record.bytes == 120);
    }
    SECTION("adjacent to an earlier one only")
    {
        record.append({4096, 100, host});
        record.append({8192, 10, host});
        record.append({4196, 10, host});
        CHECK(record.fragments.size() == 3);
    }
    SECTION("numerically adjacent, in memory of another kind")
    {
        record.append({4096, 100, host});
        record.append({4196, 10, memory_kind::device});
        CHECK(record.fragments.size() == 2);
    }
}

TEST_CASE("tokens of one loan are kept as ranges")
{
    loan record;
    for (auto const token : {1U, 2U, 3U, 7U, 8U, 5U, 6U, 6U})
        record.append_token(token);
    CHECK(all_of(record.tokens) == std::vector<token_range>{{1, 3}, {7, 2}, {5, 2}, {6, 1}});

    loan descending;
    for (auto const token : {9U, 8U, 7U, 10U, 6U, 6U, 5U, 3U})
        descending.append_token(token);
    CHECK(all_of(descending.tokens) == std::vector<token_range>{{6, 5}, {5, 2}, {3, 1}});

    loan mixed;
    for (auto const token : {0x7fffffffU, 0x80000001U, 0x80000002U, 17U, 18U, 0x80000003U, 0x08000001U})
        mixed.append_token(token);
    CHECK(all_of(mixed.tokens) ==
          std::vector<token_range>{{0x7fffffff, 1}, {0x80000001, 2}, {17, 2}, {0x80000003, 1}, {0x08000001, 1}});
}

TEST_CASE("consuming takes bytes off the front, across fragments")
{
    std::string const a = "abcdef";
    std::string const b = "ghi";
    std::string const c = "jklmnop";
    loan record;
    record.append({address_of(a), a.size(), host});
    record.append({address_of(b), b.size(), host});
    record.append({address_of(c), c.size(), host});
    auto const all = record.bytes;

    SECTION("nothing")
    {
        CHECK(taken(record, 0).empty());
        CHECK(record.bytes == all);
        CHECK(record.remaining().size() == 3);
    }
    SECTION("inside the first")
    {
        CHECK(taken(record, 2) == "ab");
        CHECK(remaining(record) ==
              std::vector<fragment>{{address_of(a, 2), 4, host}, {address_of(b), 3, host}, {address_of(c), 7, host}});
        CHECK(record.bytes == all - 2);
    }
    SECTION("exactly the first")
    {
        CHECK(taken(record, 6) == "abcdef");
        CHECK(remaining(record) == std::vector<fragment>{{address_of(b), 3, host}, {address_of(c), 7, host}});
    }
    SECTION("into the last, in two steps")
    {
        CHECK(taken(record, 7) == "abcdefg");
        CHECK(taken(record, 3) == "hij");
        CHECK(remaining(record) == std::vector<fragment>{{address_of(c, 1), 6, host}});
        CHECK(record.bytes == 6);
    }
    SECTION("more than there is")
    {
        CHECK(taken(record, 100) == "abcdefghijklmnop");
        CHECK(record.bytes == 0);
        CHECK(record.remaining().empty());
        CHECK(taken(record, 1).empty());
    }
    SECTION("byte by byte")
    {
        std::string text;
        while (record.bytes > 0)
            text += taken(record, 1);
        CHECK(text == "abcdefghijklmnop");
    }
}

TEST_CASE("extend_to() adds elements written behind the end of a list")
{
    reused_list<int> list;
    list.push_back(1);
    list.reserve(4);
    auto* next = list.end();
    *next++ = 2;
    *next++ = 3;
    CHECK(all_of(list) == std::vector{1});
    list.extend_to(next);
    list.push_back(4);
    list.push_back(5);  // for which there is no room
    CHECK(all_of(list) == std::vector{1, 2, 3, 4, 5});
    list.clear();
    CHECK(list.empty());
}

TEST_CASE("a cleared record is empty and keeps its capacity")
{
    loan record;
    for (std::uintptr_t i = 0; i < 100; ++i) {
        record.append({i * 8192, 1, host});
        record.tokens.push_back({static_cast<std::uint32_t>(2 * i), 1});
        record.pages.push_back(1);
    }
    record.charge = record.bytes;
    record.own_tokens = 100;
    record.token_count = 100;
    auto const* const storage = record.fragments.begin();
    record.clear();
    CHECK(record.fragments.empty());
    CHECK(record.tokens.empty());
    CHECK(record.pages.empty());
    CHECK(record.remaining().empty());
    CHECK(record.bytes + record.charge + record.consumed + record.token_count + record.own_tokens == 0);
    record.append({4096, 1, host});
    record.fragments.reserve(100);
    CHECK(record.fragments.begin() == storage);
}

TEST_CASE("a small batch becomes part of the one before it, with all that it holds")
{
    std::string const text = "abcdefghij";
    auto const make = [&](loan& one, std::size_t offset, std::size_t size, std::uint32_t token) {
        one.append({address_of(text, offset), size, host});
        one.charge = 4096;
        one.append_token(token);
        one.token_count = one.own_tokens = 1;
        one.pages.push_back(token);
    };
    host_chunk chunk;
    chunk.holders = 3;
    loan into;
    into.fragments.reserve(2);
    into.tokens.reserve(2);
    into.pages.reserve(2);
    make(into, 0, 3, 7);
    loan next;
    make(next, 5, 4, 8);
    SECTION("it does")
    {
        auto const has_chunk = next.host = &chunk;
        drop(into, 1);
        REQUIRE(can_absorb(into, next));
        absorb(into, next);
        CHECK(into.bytes == 6);
        CHECK(into.charge == 8192);
        CHECK(into.token_count == 2);
        CHECK(into.own_tokens == 2);
        CHECK(all_of(into.tokens) == std::vector{token_range{7, 2}});
        CHECK(all_of(into.pages) == std::vector{7U, 8U});
        CHECK(into.host == has_chunk);
        CHECK(chunk.holders == 3);
        CHECK(taken(into, 6) == "bcfghi");
        loan last;
        last.host = &chunk;
        absorb(into, last);
        CHECK(chunk.holders == 2);
    }
    SECTION("not where there is no room")
    {
        auto const same = next.fragments.begin()[0];  // the list may move
        next.fragments.push_back(same);
        CHECK_FALSE(can_absorb(into, next));
    }
    SECTION("not where there is no room for its pages")
    {
        next.pages.push_back(9);
        CHECK_FALSE(can_absorb(into, next));
    }
    SECTION("not where its bytes on the host lie elsewhere")
    {
        host_chunk other;
        into.host = &chunk;
        next.host = &other;
        CHECK_FALSE(can_absorb(into, next));
    }
    SECTION("not where a part is lent")
    {
        into.holders = 2;
        CHECK_FALSE(can_absorb(into, next));
    }
    SECTION("not where it is for another use")
    {
        next.use = page_use::on_loan;
        CHECK_FALSE(can_absorb(into, next));
    }
}

}  // namespace gpurx::detail
