// SPDX-License-Identifier: Apache-2.0
#include "nic/nic_claim.hpp"

#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <fstream>
#include <thread>

#include "claim_bench.hpp"
#include "nic/failure.hpp"

using namespace gpurx::detail;
using namespace gpurx::detail::test;
using boost::asio::ip::make_address;
using boost::asio::ip::tcp;
using Catch::Matchers::ContainsSubstring;
using ethtool::data_split;
using queues = std::vector<unsigned>;

namespace {

tcp::endpoint at(char const* address, unsigned short port)
{
    return {make_address(address), port};
}

tcp::endpoint const here = at("10.77.0.1", 5000);
tcp::endpoint const there = at("10.77.0.2", 4000);

std::unique_ptr<steered_flow> steer(nic_claim& claim, tcp::endpoint const& local, tcp::endpoint const& remote)
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    auto flow = claim.steer(local, remote, code, why);
    INFO(describe(code, why));
    REQUIRE(flow);
    return flow;
}

std::unique_ptr<steered_flow> steer_port(nic_claim& claim, tcp::endpoint const& local, bool also_v4 = false)
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    auto flow = claim.steer_port(local, also_v4, code, why);
    INFO(describe(code, why));
    REQUIRE(flow);
    return flow;
}

gpurx::system_error failure_of(claim_bench& bench, unsigned rx_queues = 1, int process = 1)
{
    try {
        auto const claim = bench.open(rx_queues, process);
    } catch (gpurx::system_error const& error) {
        return error;
    }
    FAIL("the claim succeeded");
    throw std::logic_error{"unreachable"};
}

std::string joined(std::vector<std::string> const& sentences)
{
    std::string text;
    for (auto const& sentence : sentences)
        text += sentence + '\n';
    return text;
}

}  // namespace

TEST_CASE("a claim sets the NIC up")
{
    claim_bench bench;
    auto const claim = bench.open(2);
    auto const& nic = bench.hardware.state;
    CHECK(nic.split == data_split::on);
    CHECK(nic.hds_threshold == 0U);
    CHECK(nic.ntuple);
    CHECK(nic.channels.combined == 4);
    CHECK(nic.table == indirection_table{0, 1, 0, 1, 0, 1, 0, 1});
    CHECK(nic.bound == std::map<unsigned, std::uint32_t>{{2, 1}, {3, 1}});

    CHECK(claim->queues() == queues{2, 3});
    CHECK(claim->napi_ids() == queues{102, 103});
    CHECK(claim->dmabuf_id() == 1);
    CHECK(claim->page_size() == 4096);
    REQUIRE(claim->inflight());
    CHECK(claim->inflight()->in_flight == 128);
    CHECK(claim->inflight()->total == 256);
    CHECK(claim->alloc_failures() == 12U);
    CHECK(bench.notices.empty());
}

TEST_CASE("a claim's end leaves the NIC as it was")
{
    claim_bench bench;
    auto& nic = bench.hardware.state;
    SECTION("as it comes from the factory") {}
    SECTION("header split on by the driver's choice")
    {
        nic.automatic_means_on = true;
    }
    SECTION("header split on by the user's choice")
    {
        nic.split = data_split::on;
    }
    SECTION("header split off by the user's choice, on by the driver's")
    {
        nic.split = data_split::off;
        nic.automatic_means_on = true;
    }
    SECTION("no hds-thresh")
    {
        nic.hds_threshold.reset();
    }
    SECTION("filters on, and a rule of somebody else's")
    {
        nic.ntuple = true;
        nic.rules[1] = {1, std::nullopt, 0};
    }
    SECTION("an RSS table of the user's choice")
    {
        nic.table = {0, 0, 0, 1, 1, 1, 3, 3};
        nic.table_configured = true;
    }
    SECTION("too few channels")
    {
        nic.channels.combined = 2;
        bench.hardware.set_table_of_drivers_choice();
    }
    SECTION("too few channels, and an RSS table of the user's choice")
    {
        nic.channels.combined = 2;
        nic.table = {0, 0, 0, 0, 0, 0, 0, 1};
        nic.table_configured = true;
    }
    SECTION("no RSS table")
    {
        bench.hardware.has_table = false;
    }
    SECTION("interface down")
    {
        bench.hardware.up = false;
    }
    auto const before = nic;
    {
        auto const claim = bench.open(2);
        auto const flow = steer(*claim, here, there);
        auto const port = steer_port(*claim, at("::", 6000), true);
        CHECK_FALSE(nic == before);
        CHECK(bench.recover().empty());  // touches nothing of the living
        CHECK(nic.bound.size() == 2);
    }
    CHECK(nic == before);
    CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
}

TEST_CASE("what is done is undone in reverse")
{
    claim_bench bench;
    bench.hardware.state.channels.combined = 2;
    bench.hardware.set_table_of_drivers_choice();
    {
        auto const claim = bench.open(2);
        auto const port = steer_port(*claim, here);
    }
    // The table twice: as it was, then, with the channels as they were, back into the driver's hands.
    std::vector<std::string> const expected{
        "split",          "hds",    "ntuple", "channels", "rss", "bind",   "add context", "add rule", "remove rule",
        "remove context", "unbind", "rss",    "channels", "rss", "ntuple", "hds",         "split"};
    CHECK(bench.hardware.changes == expected);
}

TEST_CASE("each change is in the journal before it is made")
{
    claim_bench bench;
    bench.hardware.state.channels.combined = 2;
    bench.hardware.set_table_of_drivers_choice();
    std::map<std::string, std::string> const line{{"split", "change tcp-data-split 0 -> 2"},
                                                  {"hds", "change hds-thresh 256 -> 0"},
                                                  {"ntuple", "change ntuple-filters 0 -> 1"},
                                                  {"channels", "change channels 0 0 2 -> 0 0 3"},
                                                  {"rss", "change rss-table 0 1 0 1 0 1 0 1 -> 0 0 0 0 0 0 0 0"},
                                                  {"bind", "queues 1 2\n"},
                                                  {"add context", "context pending 1 2\n"},
                                                  {"add rule", "rule pending tcp4 10.77.0.1 5000 * * context 1\n"}};
    int checked = 0;
    bench.hardware.before = [&](std::string const& name) {
        CHECK_THAT(bench.journal_text(), ContainsSubstring(line.at(name)));
        ++checked;
    };
    auto const claim = bench.open(2);
    auto const port = steer_port(*claim, here);
    bench.hardware.before = nullptr;
    CHECK(checked == 8);
    CHECK_THAT(bench.journal_text(), ContainsSubstring("rule 1023 tcp4 10.77.0.1 5000 * * context 1\ncontext 1 1 2\n"));
}

TEST_CASE("claimed queues are in the journal before memory is bound to them")
{
    claim_bench bench;
    bench.hardware.has_table = false;  // nothing else is written in between
    bool bound = false;
    bench.hardware.before = [&](std::string const& name) {
        if (name != "bind")
            return;
        bound = true;
        CHECK_THAT(bench.journal_text(), ContainsSubstring("queues 3\n"));
    };
    auto const claim = bench.open();
    bench.hardware.before = nullptr;
    CHECK(bound);
}

TEST_CASE("a failure at any step undoes exactly what was done")
{
    auto const failing = GENERATE(range(1, 7));
    claim_bench bench;
    bench.hardware.state.channels.combined = 2;
    bench.hardware.set_table_of_drivers_choice();
    auto const before = bench.hardware.state;

    bench.hardware.before = [&](std::string const&) {
        if (static_cast<int>(bench.hardware.changes.size()) == failing)
            throw gpurx::system_error{errno_code(EINVAL), {"step", "fake0", "the kernel's own words", "do better"}};
    };
    auto const error = failure_of(bench, 2);
    CHECK(error.code() == errno_code(EINVAL));
    CHECK(error.why().kernel_message == "the kernel's own words");
    CHECK(bench.hardware.state == before);
    CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
    CHECK(bench.notices.empty());
}

namespace {

// Everything a session does, from its beginning to its end, and what it looked like at change number `wanted`.
struct life {
    int changes = 0;
    std::string change;  // the one in question
    std::optional<claim_bench::moment> then;
};

life live(claim_bench& bench, int wanted, bool after)
{
    life result;
    auto const watch = [&](std::string const& name) {
        if (++result.changes == wanted) {
            result.then = bench.now();
            result.change = name;
        }
    };
    (after ? bench.hardware.after : bench.hardware.before) = watch;
    {
        auto const claim = bench.open(2);
        auto const port = steer_port(*claim, here);
        auto const flow = steer(*claim, here, there);
    }
    bench.hardware.before = nullptr;
    bench.hardware.after = nullptr;
    return result;
}

}  // namespace

TEST_CASE("a process killed at any moment leaves what the next one can undo")
{
    auto const after = GENERATE(false, true);
    auto const automatic_means_on = GENERATE(false, true);
    auto const channels = GENERATE(2U, 4U);
    for (int number = 1, last = 1; number <= last; ++number) {
        claim_bench bench;
        bench.hardware.state.automatic_means_on = automatic_means_on;
        bench.hardware.state.channels.combined = channels;
        bench.hardware.set_table_of_drivers_choice();
        auto const before = bench.hardware.state;

        auto const past = live(bench, number, after);
        last = past.changes;
        CHECK(last >= 15);
        CHECK(bench.hardware.state == before);
        REQUIRE(past.then);
        INFO("killed " << (after ? "after" : "before") << " change " << number << ": " << past.change);
        INFO(past.then->journal);

        bench.died_at(*past.then, 1);
        auto const said = joined(bench.recover());
        INFO(said);
        CHECK(bench.hardware.state == before);
        CHECK_THAT(said, !ContainsSubstring("somebody else"));
        CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
        CHECK(bench.recover().empty());
    }
}

TEST_CASE("the next session undoes what a killed one left, and says so")
{
    claim_bench bench;
    auto const before = bench.hardware.state;
    auto killed = bench.open(2, 1);
    auto flow = steer(*killed, here, there);
    bench.kill(std::move(killed), 1, std::move(flow));
    bench.notices.clear();
    {
        auto const claim = bench.open(1, 2);
        CHECK(claim->queues() == queues{3});
        CHECK(bench.hardware.state.rules.empty());
        CHECK_THAT(joined(bench.notices), ContainsSubstring("process 1 has ended without undoing its changes"));
        CHECK_THAT(joined(bench.notices),
                   ContainsSubstring("rule 1023 (tcp4 10.77.0.2:4000 -> 10.77.0.1:5000) removed"));
    }
    CHECK(bench.hardware.state == before);
}

TEST_CASE("what recovery did is told, setting by setting")
{
    claim_bench bench;
    bench.hardware.state.automatic_means_on = true;
    bench.kill(bench.open(2), 1);
    CHECK(bench.recover() == std::vector<std::string>{"fake0: process 1 has ended without undoing its changes",
                                                      "fake0: rss-table set back to 0 1 2 3 0 1 2 3",
                                                      "fake0: ntuple-filters set back to off",
                                                      "fake0: hds-thresh set back to 256 bytes",
                                                      "fake0: tcp-data-split set back to automatic"});
}

TEST_CASE("sessions share an interface until the last one ends")
{
    claim_bench bench;
    auto const before = bench.hardware.state;
    auto const first_ends_first = GENERATE(true, false);
    auto first = bench.open(1, 1);
    auto second = bench.open(1, 2);
    CHECK(first->queues() == queues{3});
    CHECK(second->queues() == queues{2});
    CHECK(bench.hardware.state.table == indirection_table{0, 1, 0, 1, 0, 1, 0, 1});

    (first_ends_first ? first : second).reset();
    auto const& nic = bench.hardware.state;
    CHECK(nic.split == data_split::on);
    CHECK(nic.ntuple);
    CHECK(nic.bound.size() == 1);
    // The queue that is free again takes traffic again; the other one does not.
    CHECK(nic.table ==
          (first_ends_first ? indirection_table{0, 1, 0, 3, 0, 1, 1, 3} : indirection_table{0, 1, 2, 0, 0, 1, 2, 1}));

    (first_ends_first ? second : first).reset();
    CHECK(nic == before);
    CHECK(bench.notices.empty());
}

TEST_CASE("a dead owner is undone while a living one stays")
{
    claim_bench bench;
    auto const before = bench.hardware.state;
    auto first = bench.open(1, 1);
    auto second = bench.open(1, 2);
    auto const flow = steer(*second, here, there);
    bench.kill(std::move(first), 1);
    auto const said = joined(bench.recover());
    CHECK_THAT(said, ContainsSubstring("process 1 has ended"));
    CHECK(bench.hardware.state.bound == std::map<unsigned, std::uint32_t>{{2, 2}});
    CHECK(bench.hardware.state.rules.size() == 1);
    CHECK(bench.hardware.state.split == data_split::on);
    CHECK(std::count(bench.hardware.state.table.begin(), bench.hardware.state.table.end(), 2U) == 0);
    CHECK(std::count(bench.hardware.state.table.begin(), bench.hardware.state.table.end(), 3U) == 2);
    const_cast<std::unique_ptr<steered_flow>&>(flow).reset();
    second.reset();
    CHECK(bench.hardware.state == before);
}

TEST_CASE("channels are raised when other sessions hold the queues")
{
    claim_bench bench;
    auto const before = bench.hardware.state;
    auto first = bench.open(3, 1);
    auto second = bench.open(2, 2);
    CHECK(first->queues() == queues{1, 2, 3});
    CHECK(second->queues() == queues{4, 5});
    CHECK(bench.hardware.state.channels.combined == 6);
    CHECK(bench.hardware.state.table == indirection_table(8, 0));
    second.reset();
    CHECK(bench.hardware.state.channels.combined == 6);
    first.reset();
    CHECK(bench.hardware.state == before);
}

TEST_CASE("what somebody else has changed meanwhile is left alone and reported")
{
    claim_bench bench;
    bench.hardware.state.channels.combined = 2;
    bench.hardware.set_table_of_drivers_choice();
    auto claim = bench.open(2);
    auto& nic = bench.hardware.state;
    std::string sentence;
    SECTION("channels")
    {
        nic.channels.combined = 7;
        claim.reset();
        CHECK(nic.channels.combined == 7);
        sentence =
            "fake0: channels was changed by somebody else to 0 RX, 0 TX, 7 combined and left so (before gpurx: "
            "0 RX, 0 TX, 2 combined)";
    }
    SECTION("the RSS table")
    {
        nic.table = {0, 0, 0, 0, 0, 0, 0, 1};
        claim.reset();
        CHECK(nic.table == indirection_table{0, 0, 0, 0, 0, 0, 0, 1});
        sentence = "fake0: rss-table was changed by somebody else to 0 0 0 0 0 0 0 1 and left so";
    }
    SECTION("rules of somebody else's need the filters")
    {
        nic.rules[7] = {7, std::nullopt, 0};
        claim.reset();
        CHECK(nic.ntuple);
        CHECK(nic.rules.contains(7));
        sentence = "fake0: ntuple-filters stays on: there are rules that are not gpurx's";
    }
    CHECK_THAT(joined(bench.notices), ContainsSubstring(sentence));
    CHECK(nic.hds_threshold == 256U);
    CHECK(nic.split == data_split::automatic);
}

TEST_CASE("what somebody else has set to what it was is no matter")
{
    claim_bench bench;
    auto const before = bench.hardware.state;
    auto claim = bench.open();
    bench.hardware.set_table_of_drivers_choice();
    bench.hardware.state.ntuple = false;
    claim.reset();
    CHECK(bench.hardware.state == before);
    CHECK(bench.notices.empty());
}

TEST_CASE("what somebody else wants meanwhile is what a setting returns to, if a new session changes it again")
{
    claim_bench bench;
    auto first = bench.open(1, 1);
    indirection_table const theirs{3, 2, 1, 0, 3, 2, 1, 0};
    bench.hardware.state.table = theirs;
    auto second = bench.open(1, 2);
    CHECK(bench.hardware.state.table == indirection_table{0, 1, 1, 0, 0, 1, 1, 0});
    second.reset();
    first.reset();
    CHECK(bench.hardware.state.table == theirs);
}

TEST_CASE("header split stays on while somebody else's memory needs it")
{
    claim_bench bench;
    auto const before = bench.hardware.state;
    auto claim = bench.open();
    bench.hardware.state.bound[1] = 77;
    claim.reset();
    CHECK(bench.hardware.state.split == data_split::on);
    CHECK_THAT(joined(bench.notices), ContainsSubstring("tcp-data-split could not be set back to automatic") &&
                                          ContainsSubstring("can't disable tcp-data-split while device has memory"));
    bench.hardware.state.bound.clear();
    bench.recover();
    CHECK(bench.hardware.state == before);
}

TEST_CASE("settings that cannot be put back stay in the journal for the next time")
{
    claim_bench bench;
    auto const before = bench.hardware.state;
    auto claim = bench.open();
    bench.hardware.before = [](std::string const& name) {
        if (name == "hds")
            throw gpurx::system_error{errno_code(EIO), {"set hds-thresh", "fake0", {}, {}}};
    };
    claim.reset();
    CHECK_THAT(joined(bench.notices), ContainsSubstring("fake0: hds-thresh could not be set back to 256 bytes"));
    CHECK(bench.hardware.state.split == before.split);
    CHECK(bench.hardware.state.hds_threshold == 0U);
    bench.hardware.before = nullptr;
    CHECK_THAT(joined(bench.recover()), ContainsSubstring("hds-thresh set back to 256 bytes"));
    CHECK(bench.hardware.state == before);
}

TEST_CASE("only our own rule is removed, whatever happened to its number")
{
    claim_bench bench;
    auto const claim = bench.open();
    auto flow = steer(*claim, here, there);
    auto& rules = bench.hardware.state.rules;
    REQUIRE(rules.size() == 1);
    auto const id = rules.begin()->first;
    SECTION("used again by somebody else")
    {
        rules[id].rule->match.local_port = 6000;
        flow.reset();
        CHECK(rules.size() == 1);
        CHECK_THAT(joined(bench.notices), ContainsSubstring("was changed by somebody else and left so"));
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
        CHECK_THAT(joined(bench.notices), ContainsSubstring("was removed by somebody else"));
    }
    CHECK_THAT(bench.journal_text(), !ContainsSubstring("rule "));
}

TEST_CASE("flows take turns on the queues")
{
    claim_bench bench;
    auto const claim = bench.open(2);
    auto const a = steer(*claim, here, at("10.77.0.2", 1));
    auto const b = steer(*claim, here, at("10.77.0.2", 2));
    auto const c = steer(*claim, here, at("10.77.0.2", 3));
    std::multiset<unsigned> used;
    for (auto const& [id, rule] : bench.hardware.state.rules)
        used.insert(rule.queue.value());
    CHECK(used == std::multiset<unsigned>{2, 2, 3});
    CHECK(bench.notices.empty());
}

TEST_CASE("a NIC that matches less gets a wider rule, said once")
{
    claim_bench bench;
    bench.hardware.matches_remote = false;
    auto const claim = bench.open();
    SECTION("by local address and port")
    {
        auto const flow = steer(*claim, here, there);
        REQUIRE(bench.hardware.state.rules.size() == 1);
        CHECK(to_string(bench.hardware.state.rules.begin()->second.rule->match) == "tcp4 * -> 10.77.0.1:5000");
    }
    SECTION("by local port alone")
    {
        bench.hardware.matches_address = false;
        auto const flow = steer(*claim, here, there);
        CHECK(to_string(bench.hardware.state.rules.begin()->second.rule->match) == "tcp4 * -> *:5000");
    }
    REQUIRE(bench.notices.size() == 1);
    CHECK_THAT(bench.notices[0], ContainsSubstring("steered by tcp4 * -> ") &&
                                     ContainsSubstring("add rule fake0: Operation not supported"));
    auto const again = steer(*claim, at("10.77.0.1", 5001), there);
    CHECK(bench.notices.size() == 1);
}

TEST_CASE("flows that share a wider rule remove it when the last of them ends")
{
    claim_bench bench;
    bench.hardware.matches_remote = false;
    auto const claim = bench.open();
    auto first = steer(*claim, here, at("10.77.0.2", 1));
    auto second = steer(*claim, here, at("10.77.0.2", 2));
    CHECK(bench.hardware.state.rules.size() == 1);
    first.reset();
    CHECK(bench.hardware.state.rules.size() == 1);
    second.reset();
    CHECK(bench.hardware.state.rules.empty());
}

TEST_CASE("a NIC that cannot steer at all says why")
{
    claim_bench bench;
    auto const claim = bench.open();
    bench.hardware.state.ntuple = false;
    gpurx::error_code code;
    gpurx::diagnostics why;
    CHECK_FALSE(claim->steer(here, there, code, why));
    CHECK(code == errno_code(EOPNOTSUPP));
    CHECK(why.operation == "add rule");
    CHECK_THAT(bench.journal_text(), !ContainsSubstring("rule "));
    CHECK_FALSE(claim->steer_port(at("::", 6000), true, code, why));
    CHECK(code == errno_code(EOPNOTSUPP));
}

TEST_CASE("a listener that takes both families gets both rules or none")
{
    claim_bench bench;
    auto const claim = bench.open();
    auto both = steer_port(*claim, at("::", 6000), true);
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
    CHECK_FALSE(claim->steer_port(at("::", 6000), true, code, why));
    CHECK(code == errno_code(ENOSPC));
    CHECK(bench.hardware.state.rules.empty());
}

TEST_CASE("a listener's connections are spread over several queues")
{
    claim_bench bench;
    auto claim = bench.open(2);
    auto first = steer_port(*claim, here);
    auto second = steer_port(*claim, at("10.77.0.1", 5001));
    auto const& nic = bench.hardware.state;
    REQUIRE(nic.contexts.size() == 1);
    CHECK(nic.contexts.begin()->second == indirection_table{2, 3, 2, 3, 2, 3, 2, 3});
    CHECK(nic.rules.begin()->second.rule->kind == rule_target::context);
    first.reset();
    second.reset();
    claim.reset();
    CHECK(nic.contexts.empty());
}

TEST_CASE("a NIC without RSS contexts sends a listener's connections to the first queue, and it is said")
{
    claim_bench bench;
    bench.hardware.has_contexts = false;
    auto const claim = bench.open(2);
    auto const first = steer_port(*claim, here);
    auto const second = steer_port(*claim, at("10.77.0.1", 5001));
    for (auto const& [id, rule] : bench.hardware.state.rules)
        CHECK(rule.queue == 2U);
    REQUIRE(bench.notices.size() == 1);
    CHECK_THAT(bench.notices[0], ContainsSubstring("arrive on queue 2"));
}

TEST_CASE("two sessions cannot steer the same packets")
{
    claim_bench bench;
    auto const first = bench.open(1, 1);
    auto const second = bench.open(1, 2);
    auto const flow = steer_port(*first, here);
    gpurx::error_code code;
    gpurx::diagnostics why;
    CHECK_FALSE(second->steer_port(here, false, code, why));
    CHECK(code == errno_code(EEXIST));
    CHECK_THAT(why.advice, ContainsSubstring("process 1"));
    CHECK(steer_port(*first, here));  // twice by the same one is done once
    CHECK(bench.hardware.state.rules.size() == 1);
}

TEST_CASE("a session that finds all queues claimed learns by whom")
{
    claim_bench bench;
    bench.hardware.state.channels.combined_max = 4;
    auto const other = bench.open(3, 7);
    auto const error = failure_of(bench, 1, 8);
    CHECK(error.code() == gpurx::errc::queue_busy);
    CHECK_THAT(error.why().advice, ContainsSubstring("queues 1, 2, 3 used by the gpurx session of process 7"));
    CHECK(bench.hardware.state.bound.size() == 3);
}

TEST_CASE("queues that others use are passed over, and named when there are no others")
{
    claim_bench bench;
    auto& nic = bench.hardware.state;
    nic.channels.combined_max = 4;
    std::string by;
    SECTION("memory that somebody else bound")
    {
        nic.split = data_split::on;
        nic.hds_threshold = 0;
        nic.bound[3] = 77;
        by = "memory of binding 77";
    }
    SECTION("somebody else's rule")
    {
        nic.rules[1] = {1, std::nullopt, 3};
        by = "rule 1 of somebody else";
    }
    SECTION("somebody else's RSS context")
    {
        nic.contexts[5] = {3, 3, 3, 3, 3, 3, 3, 3};
        by = "RSS context 5 of somebody else";
    }
    auto const before = nic;
    {
        auto const claim = bench.open(2);
        CHECK(claim->queues() == queues{1, 2});
    }
    auto const error = failure_of(bench, 3);
    CHECK(error.code() == gpurx::errc::queue_busy);
    CHECK_THAT(error.why().advice, ContainsSubstring("queue 3 used by " + by));
    auto restored = nic;
    restored.ntuple = before.ntuple;  // stays on for a rule that is not ours
    CHECK(restored == before);
}

TEST_CASE("more queues than the NIC has are refused")
{
    claim_bench bench;
    auto const before = bench.hardware.state;
    auto const error = failure_of(bench, 8);
    CHECK(error.code() == errno_code(ERANGE));
    CHECK_THAT(error.what(), ContainsSubstring("8 queues of at most 8"));
    CHECK(bench.hardware.state == before);
}

TEST_CASE("a queue that the kernel is just cleaning up is waited for")
{
    claim_bench bench;
    auto& nic = bench.hardware.state;
    nic.channels.combined_max = 4;
    nic.bound[3] = 77;
    auto environment = bench.environment(1);
    environment.busy_patience = std::chrono::seconds{30};
    // A process that looks at the queues sees them free at its third look.
    int looks = 0;
    bench.hardware.looked_at_queues = [&] {
        if (++looks == 3)
            nic.bound.clear();
    };
    nic_claim_config options;
    options.interface = "fake0";
    options.rx_queues = 3;
    auto const claim =
        nic_claim::open(std::move(options), std::make_unique<fake_device>(bench.hardware), std::move(environment));
    CHECK(claim->queues() == queues{1, 2, 3});
}

TEST_CASE("a driver that takes memory and does not use it is found out")
{
    claim_bench bench;
    auto const before = bench.hardware.state;
    bench.hardware.after = [&bench](std::string const& name) {
        if (name == "bind")
            bench.hardware.state.bound.clear();
    };
    auto const error = failure_of(bench);
    CHECK(error.code() == errno_code(EIO));
    CHECK(bench.hardware.state == before);
}

TEST_CASE("a setting that was refused leaves nothing to put back")
{
    claim_bench bench;
    bench.hardware.state.automatic_means_on = GENERATE(false, true);
    // Without the privilege nothing can be changed, so nothing could be put back.
    bench.hardware.before = [](std::string const&) {
        throw gpurx::system_error{errno_code(EPERM), {"set", "fake0", {}, {}}};
    };
    CHECK(failure_of(bench).code() == errno_code(EPERM));
    CHECK(bench.hardware.changes.size() == 1);
    CHECK(bench.notices.empty());
    CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
}

TEST_CASE("what the NIC cannot do is said in the kernel's words")
{
    claim_bench bench;
    auto const before = bench.hardware.state;
    SECTION("header split")
    {
        bench.hardware.can_change_split = false;
        CHECK(failure_of(bench).why().kernel_message == "setting TCP data split is not supported");
    }
    SECTION("filters")
    {
        bench.hardware.can_filter = false;
        CHECK(failure_of(bench).code() == errno_code(EOPNOTSUPP));
    }
    CHECK(bench.hardware.state == before);
    CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
}

TEST_CASE("a NIC that is gone takes its settings with it")
{
    claim_bench bench;
    auto claim = bench.open();
    bench.hardware.present = false;
    CHECK_FALSE(claim->inflight());
    CHECK_FALSE(claim->alloc_failures());
    claim.reset();
    REQUIRE(bench.notices.size() == 1);
    CHECK_THAT(bench.notices[0], ContainsSubstring("fake0 is gone"));
    CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
}

TEST_CASE("a journal of another boot is dropped")
{
    claim_bench bench;
    auto claim = bench.open();
    auto text = bench.journal_text();
    claim.reset();
    auto const before = bench.hardware.state;
    bench.write_journal(text.replace(text.find("this-boot"), 9, "last-boot"));
    CHECK_THAT(joined(bench.recover()), ContainsSubstring("dropped a journal of another boot or device"));
    CHECK(bench.hardware.state == before);
    CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
}

TEST_CASE("a damaged journal stops everything before anything is changed")
{
    claim_bench bench;
    bench.write_journal("gpurx-journal 1\nboot this-boot\ndevice fake0 4 1\nchange nonsense\n");
    std::filesystem::permissions(bench.directory() / "state", std::filesystem::perms::owner_all);
    auto const before = bench.now();
    auto const error = failure_of(bench);
    CHECK(error.code() == gpurx::errc::journal_invalid);
    CHECK_THAT(error.what(), ContainsSubstring("ifindex4-netns1.journal") && ContainsSubstring("line 4"));
    CHECK(bench.hardware.changes.empty());
    CHECK(bench.now().journal == before.journal);
}

TEST_CASE("an interface that another session is changing is not waited for without end")
{
    claim_bench bench;
    auto const claim = bench.open(1, 1);
    bool checked = false;
    bench.hardware.before = [&](std::string const& name) {
        if (name != "add rule" || checked)
            return;
        checked = true;
        CHECK(failure_of(bench, 1, 2).code() == errno_code(ETIMEDOUT));
    };
    auto const flow = steer(*claim, here, there);
    CHECK(checked);
}

TEST_CASE("flows may be steered, and the claim looked at, from several threads")
{
    claim_bench bench;
    auto claim = bench.open(2);
    std::vector<std::thread> threads;
    std::atomic<int> failed{0};
    for (unsigned short thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&claim, &failed, thread] {
            for (unsigned short i = 0; i < 10; ++i) {
                gpurx::error_code code;
                gpurx::diagnostics why;
                auto const port = static_cast<unsigned short>(1000 * thread + i + 1);
                auto const flow = claim->steer(here, at("10.77.0.2", port), code, why);
                failed += flow && claim->inflight() && claim->alloc_failures() ? 0 : 1;
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
    CHECK(failed == 0);
    CHECK(bench.hardware.state.rules.empty());
    CHECK(bench.notices.empty());
}
