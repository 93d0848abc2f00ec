// SPDX-License-Identifier: Apache-2.0
//
// The variable by which a program finds the queue of gpurx-run.
#include "lease/inherited_queue.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstdlib>
#include <string>

#include <gpurx/error.hpp>

using namespace gpurx::detail;

TEST_CASE("the variable of gpurx-run is read as it was written", "[inherited]")
{
    inherited_queue const queue{
        .interface = "lo", .channel = 10, .state = 11, .inode = std::uint64_t{1} << 40, .rings = {12, 13, 14}};
    CHECK(to_variable(queue) == "lo 10 11 1099511627776 12 13 14");
    CHECK(parse_variable(to_variable(queue)) == queue);
    REQUIRE(::setenv(inherited_queue_variable, to_variable(queue).c_str(), 1) == 0);
    CHECK(find_inherited_queue("lo") == queue);
    CHECK_FALSE(find_inherited_queue("nothing0"));
    CHECK_FALSE(find_inherited_queue(""));
    REQUIRE(::unsetenv(inherited_queue_variable) == 0);
    CHECK_FALSE(find_inherited_queue("lo"));
}

TEST_CASE("another value of the variable is none", "[inherited]")
{
    auto const* const text =
        GENERATE("", "lo", " 10 11 12 13 14", "lo 10 11 12 13", "lo 10 11 12 13 x", "lo 10 11 -1 13 14",
                 "lo -1 11 12 13 14", "lo 10 11 12  13 14", "lo 10 11 12 13 99999999999");
    INFO(text);
    CHECK_FALSE(parse_variable(text));
}

TEST_CASE("descriptors that are closed, or that are something else by now, are not taken over", "[inherited]")
{
    try {
        static_cast<void>(claim({.interface = "lo", .channel = 1, .state = 2, .inode = 1, .rings = {1, 2}}));
        FAIL("they were taken over");
    } catch (gpurx::system_error const& error) {
        CHECK(error.code().value() == EBADF);
    }
    CHECK_THROWS_AS(claim({}), gpurx::system_error);
}
