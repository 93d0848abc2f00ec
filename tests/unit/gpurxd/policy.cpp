// SPDX-License-Identifier: Apache-2.0
#include "policy.hpp"

#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <string>

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

// Adds `count` processes of users that differ, from `first` on, as far as there is room. Returns how many.
unsigned add_processes(connection_quota& to, policy_match match, unsigned count, uid_t first)
{
    unsigned taken = 0;
    for (unsigned i = 0; i < count; ++i) {
        if (!to.has_room(match, first + i))
            continue;
        to.add(static_cast<pid_t>(first + i), match, first + i);
        ++taken;
    }
    return taken;
}

}  // namespace

TEST_CASE("a policy sets the limits of users")
{
    auto const lines = parsed(
        "# who may what\n"
        "\n"
        "allow user alice interface eth1 queues 4 memory 8GiB flows 1024 rules 200 clients 3 opens 5  # a comment\n"
        "\tallow group 44 interface eth*\r\n"
        "allow user * interface * memory 512");
    REQUIRE(lines.lines.size() == 3);
    CHECK(lines.lines[0] == policy_line{subject::user, "alice", "eth1", {4, std::uint64_t{8} << 30, 1024, 200, 3, 5}});
    CHECK(lines.lines[1] == policy_line{subject::group, "44", "eth*", {}});
    CHECK(lines.lines[2].kind == subject::anyone);
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
    CHECK_FALSE(find_limits(policy{{policy_line{subject::user, "", "eth1", {}}}}, nameless, "eth1"));
    CHECK_FALSE(find_limits(policy{{policy_line{subject::user, "7x", "eth1", {}}}}, nameless, "eth1"));
    CHECK_FALSE(find_limits(policy{{policy_line{subject::group, "1000x", "eth1", {}}}}, alice, "eth1"));
}

TEST_CASE("a policy's errors have their lines")
{
    CHECK(damage_of("\n#\nallow user alice\n").line == 3);
    CHECK_THAT(damage_of("deny user alice interface eth1").what, ContainsSubstring("write a line like"));
    CHECK_THAT(damage_of("allow group * interface eth1").what, ContainsSubstring("user *"));
    CHECK_THAT(damage_of("allow user a interface eth1 queues").what, ContainsSubstring("has no value"));
    CHECK_THAT(damage_of("allow user a interface eth1 queues 0").what, ContainsSubstring("above 0"));
    CHECK_THAT(damage_of("allow user a interface eth1 queues -1").what, ContainsSubstring("above 0"));
    CHECK_THAT(damage_of("allow user a interface eth1 cores 1").what, ContainsSubstring("not a limit"));
    CHECK_THAT(damage_of("allow user a interface eth1 memory 1GB").what, ContainsSubstring("not a size"));
    CHECK_THAT(damage_of("allow user a interface eth1 memory 99999999999TiB").what, ContainsSubstring("not a size"));
    CHECK_THAT(damage_of("allow user a interface sixteen-letters-").what, ContainsSubstring("too long"));
}

TEST_CASE("every wrong line is listed")
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
    rate_limit rate{10};
    auto const start = rate_limit::clock::time_point{1h};
    for (int i = 0; i < 10; ++i)
        CHECK(rate.next(start) == 0s);
    CHECK(rate.next(start) == 100ms);
    CHECK(rate.next(start) == 200ms);
    CHECK(rate.next(start + 1s) == 0s);
    rate_limit minute{2, 1min};
    CHECK(minute.next(start) == 0s);
    CHECK(minute.next(start) == 0s);
    rate_limit later{2, 1min, minute.used_until()};
    CHECK(later.next(start) == 30s);
}

TEST_CASE("the policy knows a user by its line, one of its groups', or everybody's")
{
    policy_ids const known{.users = {1000}, .groups = {44}};
    CHECK(match_of(known, {.uid = 1000, .user = {}, .gids = {7}, .groups = {}}) == policy_match::named);
    CHECK(match_of(known, {.uid = 1001, .user = {}, .gids = {7, 44}, .groups = {}}) == policy_match::named);
    CHECK(match_of(known, {.uid = 44, .user = {}, .gids = {1000}, .groups = {}}) == policy_match::none);
    CHECK(match_of({.anyone = true}, {.uid = 44, .user = {}, .gids = {}, .groups = {}}) == policy_match::anyone);
}

TEST_CASE("strangers with many user numbers leave room for those whom the policy lets in")
{
    connection_quota all;
    CHECK(add_processes(all, policy_match::none, 1000, 100'000) == 32);
    CHECK(all.has_room(policy_match::anyone, 7));
    CHECK(add_processes(all, policy_match::anyone, 1000, 200'000) == 352);
    CHECK_FALSE(all.has_room(policy_match::none, 7));
    CHECK_FALSE(all.has_room(policy_match::anyone, 7));
    CHECK(add_processes(all, policy_match::named, 1000, 300'000) == 128);
    CHECK_FALSE(all.has_room(policy_match::named, 7));
    all.remove(100'000);
    CHECK(all.has_room(policy_match::named, 7));
    CHECK(all.has_room(policy_match::none, 7));
}

TEST_CASE("named users leave room for each other, and one user has a share")
{
    connection_quota all;
    for (pid_t i = 0; all.has_room(policy_match::named, 1000); ++i)
        all.add(i, policy_match::named, 1000);
    CHECK(all.has_room(policy_match::named, 1001));
    CHECK(add_processes(all, policy_match::named, 1000, 2000) == 512 - 64);
    connection_quota few;
    for (pid_t i = 0; few.has_room(policy_match::none, 1000); ++i)
        few.add(i, policy_match::none, 1000);
    CHECK(add_processes(few, policy_match::none, 1000, 2000) == 32 - 4);
}
