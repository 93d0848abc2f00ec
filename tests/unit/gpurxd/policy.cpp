// SPDX-License-Identifier: Apache-2.0
#include "policy.hpp"

#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

#include "rule_rate.hpp"

using namespace gpurx::gpurxd;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

policy parsed(std::string_view text)
{
    auto const result = parse_policy(text);
    REQUIRE(std::holds_alternative<policy>(result));
    return std::get<policy>(result);
}

std::vector<policy_damage> all_damage_of(std::string_view text)
{
    auto const result = parse_policy(text);
    REQUIRE(std::holds_alternative<std::vector<policy_damage>>(result));
    return std::get<std::vector<policy_damage>>(result);
}

policy_damage damage_of(std::string_view text)
{
    auto const all = all_damage_of(text);
    REQUIRE(all.size() == 1);
    return all.front();
}

caller const alice{.uid = 1000, .user = "alice", .gids = {1000, 44}, .groups = {"alice", "gpu"}};
caller const nameless{.uid = 7, .user = "", .gids = {7}, .groups = {}};

}  // namespace

TEST_CASE("a policy says who may have how much")
{
    auto const lines = parsed(
        "# who may what\n"
        "\n"
        "allow user alice interface eth1 queues 4 memory 8GiB flows 1024 rules 200 clients 3 opens 5  # a comment\n"
        "\tallow group 44 interface eth*\r\n"
        "allow user * interface * memory 512");
    REQUIRE(lines.lines.size() == 3);
    CHECK(lines.lines[0] == policy_line{who::user, "alice", "eth1", {4, std::uint64_t{8} << 30, 1024, 200, 3, 5}});
    CHECK(lines.lines[1] == policy_line{who::group, "44", "eth*", {}});
    CHECK(lines.lines[2].kind == who::anyone);
    CHECK(lines.lines[2].most.memory == 512);
    CHECK(parsed("") == policy{});
}

TEST_CASE("the first line that fits counts")
{
    auto const lines = parsed(
        "allow user alice interface eth1 queues 4\n"
        "allow group gpu interface eth2 queues 3\n"
        "allow user 7 interface eth1 queues 2\n"
        "allow user * interface eth3\n");
    CHECK(find_limits(lines, alice, "eth1")->queues == 4);
    CHECK(find_limits(lines, alice, "eth2")->queues == 3);
    CHECK(find_limits(lines, nameless, "eth1")->queues == 2);
    CHECK_FALSE(find_limits(lines, nameless, "eth2"));
    CHECK(find_limits(lines, nameless, "eth3"));
    CHECK_FALSE(find_limits(lines, alice, "eth"));
    CHECK_FALSE(find_limits({}, alice, "eth1"));
}

TEST_CASE("a user without a name is no user of an empty name, and a name no number")
{
    CHECK_FALSE(find_limits(policy{{policy_line{who::user, "", "eth1", {}}}}, nameless, "eth1"));
    CHECK_FALSE(find_limits(policy{{policy_line{who::user, "7x", "eth1", {}}}}, nameless, "eth1"));
    CHECK_FALSE(find_limits(policy{{policy_line{who::group, "1000x", "eth1", {}}}}, alice, "eth1"));
}

TEST_CASE("what is wrong with a policy is said with its line")
{
    CHECK(damage_of("\n#\nallow user alice\n").line == 3);
    CHECK_THAT(damage_of("deny user alice interface eth1").what, ContainsSubstring("a line is"));
    CHECK_THAT(damage_of("allow group * interface eth1").what, ContainsSubstring("user *"));
    CHECK_THAT(damage_of("allow user a interface eth1 queues").what, ContainsSubstring("has no value"));
    CHECK_THAT(damage_of("allow user a interface eth1 queues 0").what, ContainsSubstring("above 0"));
    CHECK_THAT(damage_of("allow user a interface eth1 queues -1").what, ContainsSubstring("above 0"));
    CHECK_THAT(damage_of("allow user a interface eth1 cores 1").what, ContainsSubstring("none of"));
    CHECK_THAT(damage_of("allow user a interface eth1 memory 1GB").what, ContainsSubstring("no size"));
    CHECK_THAT(damage_of("allow user a interface eth1 memory 99999999999TiB").what, ContainsSubstring("no size"));
    CHECK_THAT(damage_of("allow user a interface sixteen-letters-").what, ContainsSubstring("too long"));
}

TEST_CASE("every line that is wrong is said")
{
    auto const all = all_damage_of(
        "allow user a interface eth1 cores 1\n"
        "allow user a interface eth1\n"
        "deny user a\n"
        "metrics nowhere\n"
        "allow user a interface eth1 queues 0");
    REQUIRE(all.size() == 4);
    CHECK(all[0].line == 1);
    CHECK(all[1].line == 3);
    CHECK(all[2].line == 4);
    CHECK(all[3].line == 5);
    CHECK_THAT(all[3].what, ContainsSubstring("above 0"));
}

TEST_CASE("an address for metrics is refused, with the option that there is instead")
{
    auto const damage = damage_of("allow user * interface eth1\nmetrics 127.0.0.1:9710\n");
    CHECK(damage.line == 2);
    CHECK_THAT(damage.what, ContainsSubstring("--metrics-directory"));
}

TEST_CASE("a second's worth of rules may come at once, and then one after the other")
{
    rule_rate rate{10};
    auto const start = rule_rate::clock::time_point{1h};
    for (int i = 0; i < 10; ++i)
        CHECK(rate.next(start) == 0s);
    CHECK(rate.next(start) == 100ms);
    CHECK(rate.next(start) == 200ms);
    CHECK(rate.next(start + 1s) == 0s);
    rule_rate minute{2, 1min};
    CHECK(minute.next(start) == 0s);
    CHECK(minute.next(start) == 0s);
    rule_rate later{2, 1min, minute.used_until()};
    CHECK(later.next(start) == 30s);
}
