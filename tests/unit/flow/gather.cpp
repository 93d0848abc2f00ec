// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <gpurx/gather.hpp>
#include <string>
#include <vector>

namespace gpurx {

namespace {

std::uintptr_t address_of(std::string const& text)
{
    return reinterpret_cast<std::uintptr_t>(text.data());
}

}  // namespace

TEST_CASE("gather places fragments in order")
{
    std::string const a = "hello";
    std::string const b = " ";
    std::string const c = "world";
    std::vector<fragment> const fragments{{address_of(a), a.size(), memory_kind::host},
                                          {address_of(b), b.size(), memory_kind::host},
                                          {address_of(c), c.size(), memory_kind::host}};
    std::string out(16, '.');
    auto const span = [&](std::size_t size, memory_kind kind = memory_kind::host) {
        return memory_span{kind, address_of(out), size};
    };
    error_code code = errc::no_cuda;

    SECTION("with room to spare")
    {
        CHECK(gather(fragments, span(16), {}, code) == 11);
        CHECK_FALSE(code);
        CHECK(out == "hello world.....");
    }
    SECTION("exactly")
    {
        CHECK(gather(fragments, span(11)) == 11);
        CHECK(out == "hello world.....");
    }
    SECTION("nothing")
    {
        CHECK(gather({}, span(0), {}, code) == 0);
        CHECK_FALSE(code);
    }
    SECTION("one byte short: nothing is written")
    {
        CHECK(gather(fragments, span(10), {}, code) == 0);
        CHECK(code == errc::bad_destination);
        CHECK(out == std::string(16, '.'));
        CHECK_THROWS_AS(gather(fragments, span(10)), system_error);
    }
    SECTION("a destination on a GPU")
    {
        CHECK(gather(fragments, span(16, memory_kind::device), {}, code) == 0);
        CHECK(code == errc::bad_destination);
    }
    SECTION("a fragment on a GPU")
    {
        auto mixed = fragments;
        mixed[1].kind = memory_kind::device;
        CHECK(gather(mixed, span(16), {}, code) == 0);
        CHECK(code == errc::bad_destination);
        CHECK(out == std::string(16, '.'));
    }
}

}  // namespace gpurx
