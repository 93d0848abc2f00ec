// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>

#include "base/failure.hpp"
#include "lease_bench.hpp"

using namespace gpurx::detail;
using namespace gpurx::detail::test;
using Catch::Matchers::ContainsSubstring;
using ethtool::data_split;
using queues = std::vector<unsigned>;

TEST_CASE("sessions share an interface until the last one ends")
{
    lease_bench bench;
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
    lease_bench bench;
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
    const_cast<std::unique_ptr<steering_rule>&>(flow).reset();
    second.reset();
    CHECK(bench.hardware.state == before);
}

TEST_CASE("an owner in another container lives while a queue shows its memory")
{
    lease_bench bench;
    bench.zcrx = GENERATE(false, true);
    auto const before = bench.hardware.state;
    auto first = bench.open(2, 1);
    bench.hide(1);
    CHECK(bench.recover().empty());
    auto second = bench.open(1, 2);
    CHECK(second->queues() == queues{1U});
    second.reset();
    CHECK(bench.hardware.state.bound.size() + bench.hardware.state.io_uring.size() == 2);

    bench.kill(std::move(first), 1);
    CHECK_THAT(joined(bench.recover()), ContainsSubstring("process 1 of another pid namespace has ended"));
    CHECK(bench.hardware.state == before);
}

TEST_CASE("memory of another program on the queues of an owner in another container does not make it live")
{
    lease_bench bench;
    bench.kill(bench.open(1, 1), 1);
    bench.hide(1);
    bench.hardware.state.bound[3] = 77;
    CHECK_THAT(joined(bench.recover()), ContainsSubstring("process 1 of another pid namespace has ended"));
}

TEST_CASE("an owner in another container is left alone if the kernel shows no queues")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    bench.kill(bench.open(1, 1), 1);
    bench.hide(1);
    SECTION("the interface is down")
    {
        bench.hardware.up = false;
    }
    SECTION("the kernel does not answer")
    {
        bench.hardware.looked_at_queues = [] {
            throw gpurx::system_error{errno_code(ETIMEDOUT), {"list queues", "fake0", {}, {}}};
        };
    }
    CHECK(bench.recover().empty());
    bench.hardware.up = true;
    bench.hardware.looked_at_queues = nullptr;
    CHECK_FALSE(bench.recover().empty());
    CHECK(bench.hardware.state == before);
}

TEST_CASE("an owner in another container without memory in the journal is left alone")
{
    lease_bench bench;
    bench.kill(bench.open(1, 1), 1);
    bench.hide(1);
    auto text = bench.journal_text();
    auto const line = text.find("binding 1\n");
    REQUIRE(line != std::string::npos);
    bench.write_journal(text.erase(line, 10));  // as earlier versions write it
    CHECK(bench.recover().empty());
    CHECK_FALSE(bench.hardware.state == nic_state{});
}

TEST_CASE("channels are raised when other sessions hold the queues")
{
    lease_bench bench;
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

TEST_CASE("a table that grows with the channels is put back with them")
{
    lease_bench bench;
    bench.hardware.table_grows = true;
    if (GENERATE(true, false)) {
        bench.hardware.state.table = {0, 1, 2, 3, 3, 2, 1, 0};
        bench.hardware.state.table_configured = true;
        bench.hardware.configured_size = 8;
    }
    auto const before = bench.hardware.state;
    auto const first_ends_first = GENERATE(true, false);
    auto first = bench.open(3, 1);
    auto second = bench.open(2, 2);
    CHECK(bench.hardware.state.channels.combined == 6);
    CHECK(bench.hardware.state.table == indirection_table(16, 0));

    (first_ends_first ? first : second).reset();
    auto third = bench.open(1, 3);
    third.reset();
    (first_ends_first ? second : first).reset();
    CHECK(bench.hardware.state == before);
    CHECK(bench.notices.empty());
}

TEST_CASE("a setting changed by another program stays, and is reported")
{
    lease_bench bench;
    bench.hardware.state.channels.combined = 2;
    bench.hardware.set_table_of_drivers_choice();
    auto lease = bench.open(2);
    auto& nic = bench.hardware.state;
    std::string sentence;
    SECTION("channels")
    {
        nic.channels.combined = 7;
        lease.reset();
        CHECK(nic.channels.combined == 7);
        sentence =
            "fake0: channels was changed by another program to 0 RX, 0 TX, 7 combined and left so (before gpurx: "
            "0 RX, 0 TX, 2 combined)";
    }
    SECTION("the RSS table")
    {
        nic.table = {0, 0, 0, 0, 0, 0, 0, 1};
        lease.reset();
        CHECK(nic.table == indirection_table{0, 0, 0, 0, 0, 0, 0, 1});
        sentence = "fake0: rss-table was changed by another program to 0 0 0 0 0 0 0 1 and left so";
    }
    SECTION("rules of somebody else's need the filters")
    {
        nic.rules[7] = {7, std::nullopt, 0};
        lease.reset();
        CHECK(nic.ntuple);
        CHECK(nic.rules.contains(7));
        sentence = "fake0: ntuple-filters stays on: other programs have rules";
    }
    CHECK_THAT(joined(bench.notices), ContainsSubstring(sentence));
    CHECK(nic.hds_threshold == 256U);
    CHECK(nic.split == data_split::automatic);
}

TEST_CASE("a setting that another program has restored needs no notice")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    auto lease = bench.open();
    bench.hardware.set_table_of_drivers_choice();
    bench.hardware.state.ntuple = false;
    lease.reset();
    CHECK(bench.hardware.state == before);
    CHECK(bench.notices.empty());
}

TEST_CASE("a setting returns to another program's value if a new session changes it again")
{
    lease_bench bench;
    auto first = bench.open(1, 1);
    indirection_table const theirs{3, 2, 1, 0, 3, 2, 1, 0};
    bench.hardware.state.table = theirs;
    auto second = bench.open(1, 2);
    CHECK(bench.hardware.state.table == indirection_table{0, 1, 1, 0, 0, 1, 1, 0});
    second.reset();
    first.reset();
    CHECK(bench.hardware.state.table == theirs);
}

TEST_CASE("header split stays on while another program's memory needs it")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    auto lease = bench.open();
    bench.hardware.state.bound[1] = 77;
    lease.reset();
    CHECK(bench.hardware.state.split == data_split::on);
    CHECK_THAT(joined(bench.notices), ContainsSubstring("tcp-data-split could not be restored to automatic") &&
                                          ContainsSubstring("can't disable tcp-data-split while device has memory"));
    bench.hardware.state.bound.clear();
    bench.recover();
    CHECK(bench.hardware.state == before);
}

TEST_CASE("settings that cannot be put back stay in the journal for the next time")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    auto lease = bench.open();
    bench.hardware.before = [](std::string const& name) {
        if (name == "hds")
            throw gpurx::system_error{errno_code(EIO), {"set hds-thresh", "fake0", {}, {}}};
    };
    lease.reset();
    CHECK_THAT(joined(bench.notices), ContainsSubstring("fake0: hds-thresh could not be restored to 256 bytes"));
    CHECK(bench.hardware.state.split == before.split);
    CHECK(bench.hardware.state.hds_threshold == 0U);
    bench.hardware.before = nullptr;
    CHECK_THAT(joined(bench.recover()), ContainsSubstring("hds-thresh restored to 256 bytes"));
    CHECK(bench.hardware.state == before);
}

TEST_CASE("the wait for an interface that another session changes has a limit")
{
    lease_bench bench;
    auto const lease = bench.open(1, 1);
    bool checked = false;
    bench.hardware.before = [&](std::string const& name) {
        if (name != "add rule" || checked)
            return;
        checked = true;
        CHECK(failure_of(bench, 1, 2).code() == errno_code(ETIMEDOUT));
    };
    auto const flow = steer(*lease, here, there);
    CHECK(checked);
}

TEST_CASE("queues that another program keeps out of RSS stay reserved while sessions come and go")
{
    lease_bench bench;
    auto& nic = bench.hardware.state;
    nic.table = {0, 1, 2, 0, 1, 2, 0, 1};
    nic.table_configured = true;
    bench.hardware.configured_size = 8;
    auto const before = nic;
    auto first = bench.open(1, 1);
    CHECK(first->queues() == queues{2});
    auto second = bench.open(2, 2);
    CHECK(second->queues() == queues{1, 4});  // 4 is one that gpurx has added
    first.reset();
    auto third = bench.open(1, 3);
    CHECK(third->queues() == queues{2});
    third.reset();
    second.reset();
    CHECK(nic == before);
    CHECK(bench.notices.empty());
}

TEST_CASE("queues taken out of RSS by another program are reserved while sessions live")
{
    lease_bench bench;
    bench.hardware.state.channels.combined_max = 4;
    auto const first = bench.open(1, 1);
    CHECK(first->queues() == queues{3});
    bench.hardware.state.table = {0, 1, 0, 1, 0, 1, 0, 1};
    CHECK(bench.open(1, 2)->queues() == queues{1});
}

TEST_CASE("queues added under gpurx's own table are free")
{
    lease_bench bench;
    auto const first = bench.open(3, 1);
    auto const second = bench.open(1, 2);
    CHECK(second->queues() == queues{4});
    auto const third = bench.open(1, 3);
    CHECK(third->queues() == queues{5});
}
