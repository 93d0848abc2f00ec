// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <thread>

#include "base/failure.hpp"
#include "lease_bench.hpp"

using namespace gpurx::detail;
using namespace gpurx::detail::test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("only our own rule is removed, whatever happened to its number")
{
    lease_bench bench;
    auto const lease = bench.open();
    auto flow = steer(*lease, here, there);
    auto& rules = bench.hardware.state.rules;
    REQUIRE(rules.size() == 1);
    auto const id = rules.begin()->first;
    SECTION("used again by somebody else")
    {
        rules[id].rule->match.local_port = 6000;
        flow.reset();
        CHECK(rules.size() == 1);
        CHECK_THAT(joined(bench.notices), ContainsSubstring("was changed by another program and left so"));
    }
    SECTION("used again for another queue")
    {
        rules[id].rule->target = 0;
        flow.reset();
        CHECK(rules.size() == 1);
    }
    SECTION("gone")
    {
        rules.clear();
        flow.reset();
        CHECK_THAT(joined(bench.notices), ContainsSubstring("was removed by another program"));
    }
    CHECK_THAT(bench.journal_text(), !ContainsSubstring("rule "));
}

TEST_CASE("flows take turns on the queues")
{
    lease_bench bench;
    auto const lease = bench.open(2);
    auto const a = steer(*lease, here, at("10.77.0.2", 1));
    auto const b = steer(*lease, here, at("10.77.0.2", 2));
    auto const c = steer(*lease, here, at("10.77.0.2", 3));
    std::multiset<unsigned> used;
    for (auto const& [id, rule] : bench.hardware.state.rules)
        used.insert(rule.queue.value());
    CHECK(used == std::multiset<unsigned>{2, 2, 3});
    CHECK(bench.notices.empty());
}

TEST_CASE("a NIC that matches fewer fields gets a wider rule, with one notice")
{
    lease_bench bench;
    bench.hardware.matches_remote = false;
    auto const lease = bench.open();
    SECTION("by local address and port")
    {
        auto const flow = steer(*lease, here, there);
        REQUIRE(bench.hardware.state.rules.size() == 1);
        CHECK(to_string(bench.hardware.state.rules.begin()->second.rule->match) == "tcp4 * -> 10.77.0.1:5000");
    }
    SECTION("by local port alone")
    {
        bench.hardware.matches_address = false;
        auto const flow = steer(*lease, here, there);
        CHECK(to_string(bench.hardware.state.rules.begin()->second.rule->match) == "tcp4 * -> *:5000");
    }
    REQUIRE(bench.notices.size() == 1);
    CHECK_THAT(bench.notices[0], ContainsSubstring("steered by tcp4 * -> ") &&
                                     ContainsSubstring("add rule fake0: Operation not supported"));
    auto const again = steer(*lease, at("10.77.0.1", 5001), there);
    CHECK(bench.notices.size() == 1);
}

TEST_CASE("a daemon makes no rule for a port alone")
{
    lease_bench bench;
    bench.hardware.matches_remote = false;
    bench.hardware.matches_address = false;
    auto const lease = bench.open(1, 1, false);
    gpurx::error_code code;
    gpurx::diagnostics why;
    CHECK_FALSE(lease->steer_flow(-1, here, there, code, why));
    CHECK(code.value() == EOPNOTSUPP);
    CHECK_FALSE(lease->steer_port(-1, at("0.0.0.0", 5000), false, code, why));
    CHECK(code.value() == EACCES);
    CHECK(bench.hardware.state.rules.empty());
    CHECK_THAT(bench.journal_text(), !ContainsSubstring("rule "));
    bench.hardware.matches_address = true;
    auto const flow = steer(*lease, here, there);
    REQUIRE(bench.hardware.state.rules.size() == 1);
    CHECK(to_string(bench.hardware.state.rules.begin()->second.rule->match) == "tcp4 * -> 10.77.0.1:5000");
}

TEST_CASE("a flow that moves gets a rule of its own or none, and the port's rule stays")
{
    lease_bench bench;
    auto const home = bench.open();
    auto const other = bench.open(1, 2);
    auto const port = steer_port(*home, here);
    auto& rules = bench.hardware.state.rules;
    REQUIRE(rules.size() == 1);
    gpurx::error_code code;
    gpurx::diagnostics why;
    CHECK(other->moves_flows());
    SECTION("where the NIC matches both ends")
    {
        auto moved = other->move_flow(-1, here, there, code, why);
        REQUIRE(moved);
        REQUIRE(rules.size() == 2);
        auto const& made = rules.begin()->second;  // numbers fall
        CHECK(to_string(made.rule->match) == "tcp4 10.77.0.2:4000 -> 10.77.0.1:5000");
        CHECK(made.queue == other->queues().front());
        moved.reset();
    }
    SECTION("where it does not")
    {
        bench.hardware.matches_remote = false;
        CHECK_FALSE(other->move_flow(-1, here, there, code, why));
        CHECK(code == errno_code(EOPNOTSUPP));
        CHECK(why.operation == "add rule");
    }
    REQUIRE(rules.size() == 1);
    CHECK(rules.begin()->second.queue == home->queues().front());
    CHECK(bench.notices.empty());
}

TEST_CASE("flows that share a wider rule remove it when the last of them ends")
{
    lease_bench bench;
    bench.hardware.matches_remote = false;
    auto const lease = bench.open();
    auto first = steer(*lease, here, at("10.77.0.2", 1));
    auto second = steer(*lease, here, at("10.77.0.2", 2));
    CHECK(bench.hardware.state.rules.size() == 1);
    first.reset();
    CHECK(bench.hardware.state.rules.size() == 1);
    second.reset();
    CHECK(bench.hardware.state.rules.empty());
}

TEST_CASE("a NIC that cannot steer is an error with the reason")
{
    lease_bench bench;
    auto const lease = bench.open();
    bench.hardware.state.ntuple = false;
    gpurx::error_code code;
    gpurx::diagnostics why;
    CHECK_FALSE(lease->steer_flow(-1, here, there, code, why));
    CHECK(code == errno_code(EOPNOTSUPP));
    CHECK(why.operation == "add rule");
    CHECK_THAT(bench.journal_text(), !ContainsSubstring("rule "));
    CHECK_FALSE(lease->steer_port(-1, at("::", 6000), true, code, why));
    CHECK(code == errno_code(EOPNOTSUPP));
}

TEST_CASE("a listener that takes both families gets both rules or none")
{
    lease_bench bench;
    auto const lease = bench.open();
    auto both = steer_port(*lease, at("::", 6000), true);
    CHECK(bench.hardware.state.rules.size() == 2);
    both.reset();
    CHECK(bench.hardware.state.rules.empty());

    int made = 0;
    bench.hardware.before = [&made](std::string const& name) {
        if (name == "add rule" && ++made == 2)
            throw gpurx::system_error{errno_code(ENOSPC), {"add rule", "fake0", {}, {}}};
    };
    gpurx::error_code code;
    gpurx::diagnostics why;
    CHECK_FALSE(lease->steer_port(-1, at("::", 6000), true, code, why));
    CHECK(code == errno_code(ENOSPC));
    CHECK(bench.hardware.state.rules.empty());
}

TEST_CASE("a listener's connections are spread over several queues")
{
    lease_bench bench;
    auto lease = bench.open(2);
    auto first = steer_port(*lease, here);
    auto second = steer_port(*lease, at("10.77.0.1", 5001));
    auto const& nic = bench.hardware.state;
    REQUIRE(nic.contexts.size() == 1);
    CHECK(nic.contexts.begin()->second == indirection_table{2, 3, 2, 3, 2, 3, 2, 3});
    CHECK(nic.rules.begin()->second.rule->kind == rule_target::context);
    first.reset();
    second.reset();
    lease.reset();
    CHECK(nic.contexts.empty());
}

TEST_CASE("a NIC without RSS contexts sends a listener's connections to the first queue, with a notice")
{
    lease_bench bench;
    bench.hardware.has_contexts = false;
    auto const lease = bench.open(2);
    auto const first = steer_port(*lease, here);
    auto const second = steer_port(*lease, at("10.77.0.1", 5001));
    for (auto const& [id, rule] : bench.hardware.state.rules)
        CHECK(rule.queue == 2U);
    REQUIRE(bench.notices.size() == 1);
    CHECK_THAT(bench.notices[0], ContainsSubstring("arrive on queue 2"));
}

TEST_CASE("a lease holds no lock while it gives notice")
{
    lease_bench bench;
    bench.hardware.has_contexts = false;
    bench.hardware.matches_remote = false;
    auto const lease = bench.open(2);
    gpurx::error_code code;
    gpurx::diagnostics why;
    std::unique_ptr<steering_rule> other;
    bench.on_notice = [&] { other = lease->steer_flow(-1, at("10.77.0.1", 5001), there, code, why); };
    SECTION("on a flow")
    {
        auto const flow = steer(*lease, here, there);
        CHECK(other);
    }
    SECTION("on a listener")
    {
        auto const listener = steer_port(*lease, here);
        CHECK(other);
    }
    CHECK_FALSE(code);
}

TEST_CASE("two sessions cannot steer the same packets")
{
    lease_bench bench;
    auto const first = bench.open(1, 1);
    auto const second = bench.open(1, 2);
    auto const flow = steer_port(*first, here);
    gpurx::error_code code;
    gpurx::diagnostics why;
    CHECK_FALSE(second->steer_port(-1, here, false, code, why));
    CHECK(code == errno_code(EEXIST));
    CHECK_THAT(why.advice, ContainsSubstring("process 1"));
    CHECK(steer_port(*first, here));  // twice by the same one is done once
    CHECK(bench.hardware.state.rules.size() == 1);
}

TEST_CASE("flows may be steered, and the lease looked at, from several threads")
{
    lease_bench bench;
    auto lease = bench.open(2);
    std::vector<std::thread> threads;
    std::atomic<int> failed{0};
    for (unsigned short thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&lease, &failed, thread] {
            for (unsigned short i = 0; i < 10; ++i) {
                gpurx::error_code code;
                gpurx::diagnostics why;
                auto const port = static_cast<unsigned short>(1000 * thread + i + 1);
                auto const flow = lease->steer_flow(-1, here, at("10.77.0.2", port), code, why);
                failed += flow && lease->sample() ? 0 : 1;
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
    CHECK(failed == 0);
    CHECK(bench.hardware.state.rules.empty());
    CHECK(bench.notices.empty());
}
