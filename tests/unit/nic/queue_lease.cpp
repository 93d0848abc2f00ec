// SPDX-License-Identifier: Apache-2.0
#include "lease/queue_lease.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <tuple>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "lease_bench.hpp"

using namespace gpurx::detail;
using namespace gpurx::detail::test;
using Catch::Matchers::ContainsSubstring;
using ethtool::data_split;
using queues = std::vector<unsigned>;

TEST_CASE("a lease sets the NIC up")
{
    lease_bench bench;
    auto const lease = bench.open(2);
    auto const& nic = bench.hardware.state;
    CHECK(nic.split == data_split::on);
    CHECK(nic.hds_threshold == 0U);
    CHECK(nic.ntuple);
    CHECK(nic.channels.combined == 4);
    CHECK(nic.table == indirection_table{0, 1, 0, 1, 0, 1, 0, 1});
    CHECK(nic.bound == std::map<unsigned, std::uint32_t>{{2, 1}, {3, 1}});

    CHECK(lease->queues() == queues{2, 3});
    CHECK(lease->dmabuf_id() == 1);
    CHECK(lease->page_size() == sys::page_size());
    CHECK(bench.notices.empty());
}

TEST_CASE("a lease for io_uring has one queue, and its binding is in the journal")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    bench.zcrx = true;
    {
        auto const lease = bench.open();
        auto const& nic = bench.hardware.state;
        CHECK(nic.split == data_split::on);
        CHECK(nic.bound.empty());
        CHECK(nic.io_uring == std::set<unsigned>{3});
        CHECK(lease->queues() == queues{3});
        CHECK_THAT(bench.journal_text(), ContainsSubstring("binding io_uring\nqueues 3\n"));
    }
    CHECK(bench.hardware.state == before);
}

TEST_CASE("the system's own page size is not asked for: older kernels know no choice")
{
    lease_bench bench;
    auto const page = static_cast<std::uint32_t>(sys::page_size());
    auto const [wanted, asked] =
        GENERATE_COPY(table<std::uint32_t, std::uint32_t>({{0, 0}, {page, 0}, {2 * page, 2 * page}}));
    bench.hardware.asked_page_size = 1;
    queue_lease_config options;
    options.interface = "fake0";
    options.rx_page_size = wanted;
    auto const lease =
        queue_lease::open(std::move(options), std::make_unique<fake_device>(bench.hardware), bench.environment(1));
    CHECK(bench.hardware.asked_page_size == asked);
    CHECK(lease->page_size() == (wanted == 0 ? page : wanted));
}

TEST_CASE("a lease tells what its queues have in flight, and have lost since it was made")
{
    lease_bench bench;
    auto const lease = bench.open(2);
    auto const sample = [&] {
        auto const seen = lease->sample();
        REQUIRE(seen);
        CHECK(seen->in_flight == 128);
        CHECK_FALSE(seen->drops);
        return std::pair{seen->allocation_failures, seen->overruns};
    };
    CHECK(sample() == std::pair{std::optional<std::uint64_t>{0}, std::optional<std::uint64_t>{0}});
    bench.hardware.losses += 10;
    CHECK(sample() == std::pair{std::optional<std::uint64_t>{20}, std::optional<std::uint64_t>{20}});
    // A driver that begins anew.
    bench.hardware.losses = 1;
    CHECK(sample() == std::pair{std::optional<std::uint64_t>{2 + 2 + 3}, std::optional<std::uint64_t>{2}});
}

TEST_CASE("a ring that is refused leaves the NIC untouched")
{
    lease_bench bench;
    bench.hardware.rx_frames = GENERATE(std::optional<std::uint32_t>{}, std::optional{4096U});
    bench.hardware.mtu = 9000;
    nic_ring seen;
    queue_lease_config options;
    options.interface = "fake0";
    options.check_ring = [&](nic_ring const& ring) {
        seen = ring;
        fail(make_error_code(gpurx::errc::memory_too_small), "share out", "memory");
    };
    auto const before = bench.hardware.state;
    CHECK_THROWS_AS(queue_lease::open(options, std::make_unique<fake_device>(bench.hardware), bench.environment(1)),
                    gpurx::system_error);
    CHECK(seen == nic_ring{bench.hardware.rx_frames, 9000});
    CHECK(bench.hardware.state == before);
    CHECK(bench.hardware.changes.empty());

    options.check_ring = {};
    auto const lease =
        queue_lease::open(std::move(options), std::make_unique<fake_device>(bench.hardware), bench.environment(1));
    CHECK(lease->ring() == seen);
}

TEST_CASE("a lease reports whether the kernel has array tokens")
{
    auto const has_them = GENERATE(false, true);
    lease_bench bench;
    bench.hardware.has_array_tokens = has_them;
    CHECK(bench.open(1)->has_array_tokens() == has_them);
}

TEST_CASE("a lease's end leaves the NIC as it was")
{
    lease_bench bench;
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
    SECTION("header split only together with GRO in hardware")
    {
        bench.hardware.split_needs_gro = true;
    }
    SECTION("interface down")
    {
        bench.hardware.up = false;
    }
    auto const before = nic;
    {
        auto const lease = bench.open(2);
        auto const flow = steer(*lease, here, there);
        auto const port = steer_port(*lease, at("::", 6000), true);
        CHECK_FALSE(nic == before);
        CHECK(bench.recover().empty());  // touches nothing of the living
        CHECK(nic.bound.size() == 2);
    }
    CHECK(nic == before);
    CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
}

TEST_CASE("changes are undone in reverse order")
{
    lease_bench bench;
    bench.hardware.state.channels.combined = 2;
    bench.hardware.set_table_of_drivers_choice();
    {
        auto const lease = bench.open(2);
        auto const port = steer_port(*lease, here);
    }
    // The table twice: as it was, then, with the channels as they were, back into the driver's hands.
    std::vector<std::string> const expected{
        "split",          "hds",    "ntuple", "channels", "rss", "bind",   "add context", "add rule", "remove rule",
        "remove context", "unbind", "rss",    "channels", "rss", "ntuple", "hds",         "split"};
    CHECK(bench.hardware.changes == expected);
}

TEST_CASE("each change is in the journal before it is made")
{
    lease_bench bench;
    bench.hardware.state.channels.combined = 2;
    bench.hardware.set_table_of_drivers_choice();
    std::map<std::string, std::string> const line{
        {"split", "change tcp-data-split 0 -> 2"},
        {"hds", "change hds-thresh 256 -> 0"},
        {"ntuple", "change ntuple-filters 0 -> 1"},
        {"channels", "change channels 0 0 2 -> 0 0 3"},
        {"rss", "change rss-table 0 1 0 1 0 1 0 1 -> 0 0 0 0 0 0 0 0"},
        {"bind", "queues 1 2\n"},
        {"add context", "context pending 1 2\n"},
        {"add rule", "\nend\nat 0 pending tcp4 10.77.0.1 5000 * * context 1\n"}};
    int checked = 0;
    bench.hardware.before = [&](std::string const& name) {
        CHECK_THAT(bench.journal_text(), ContainsSubstring(line.at(name)));
        ++checked;
    };
    auto const lease = bench.open(2);
    auto const port = steer_port(*lease, here);
    bench.hardware.before = nullptr;
    CHECK(checked == 8);
    CHECK_THAT(bench.journal_text(),
               ContainsSubstring("context 1 1 2\nend\nat 0 pending tcp4 10.77.0.1 5000 * * context 1\n"
                                 "at 0 1023 tcp4 10.77.0.1 5000 * * context 1\n"));
}

TEST_CASE("leased queues are in the journal before memory is bound to them")
{
    lease_bench bench;
    bench.hardware.has_table = false;  // nothing else is written in between
    bool bound = false;
    bench.hardware.before = [&](std::string const& name) {
        if (name != "bind")
            return;
        bound = true;
        CHECK_THAT(bench.journal_text(), ContainsSubstring("queues 3\n"));
    };
    auto const lease = bench.open();
    bench.hardware.before = nullptr;
    CHECK(bound);
}

TEST_CASE("a failure at any step undoes exactly what was done")
{
    auto const failing = GENERATE(range(1, 7));
    lease_bench bench;
    bench.zcrx = GENERATE(false, true);
    bench.hardware.state.channels.combined = 2;
    bench.hardware.set_table_of_drivers_choice();
    auto const before = bench.hardware.state;

    bench.hardware.before = [&](std::string const&) {
        if (static_cast<int>(bench.hardware.changes.size()) == failing)
            throw gpurx::system_error{errno_code(EIO), {"step", "fake0", "the kernel's own words", "do better"}};
    };
    auto const error = failure_of(bench, 2);
    CHECK(error.code() == errno_code(EIO));
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
    std::optional<lease_bench::moment> then;
};

life live(lease_bench& bench, int wanted, bool after)
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
        auto const lease = bench.open(2);
        auto const port = steer_port(*lease, here);
        auto const flow = steer(*lease, here, there);
    }
    bench.hardware.before = nullptr;
    bench.hardware.after = nullptr;
    return result;
}

}  // namespace

namespace {

// A NIC of this kind, and a process that is killed at each moment of its life in turn.
struct killing {
    bool after = true;  // each change; or before it
    bool automatic_means_on = false;
    unsigned channels = 2;
    bool split_needs_gro = false;
    bool in_a_container = false;
    bool zcrx = false;
};

void check(killing const& how)
{
    for (int number = 1, last = 1; number <= last; ++number) {
        lease_bench bench;
        bench.zcrx = how.zcrx;
        bench.hardware.state.automatic_means_on = how.automatic_means_on;
        bench.hardware.state.channels.combined = how.channels;
        bench.hardware.split_needs_gro = how.split_needs_gro;
        bench.hardware.set_table_of_drivers_choice();
        auto const before = bench.hardware.state;

        auto const past = live(bench, number, how.after);
        last = past.changes;
        CHECK(last >= 15);
        CHECK(bench.hardware.state == before);
        REQUIRE(past.then);
        INFO("killed " << (how.after ? "after" : "before") << " change " << number << ": " << past.change);
        INFO(past.then->journal);

        bench.died_at(*past.then, 1);
        if (how.in_a_container)
            bench.hide(1);
        auto const said = joined(bench.recover());
        INFO(said);
        CHECK(bench.hardware.state == before);
        CHECK_THAT(said, !ContainsSubstring("somebody else"));
        CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
        CHECK(bench.recover().empty());
    }
}

}  // namespace

TEST_CASE("the next process can undo the changes of one killed at any moment")
{
    check({.after = GENERATE(false, true),
           .automatic_means_on = GENERATE(false, true),
           .channels = GENERATE(2U, 4U),
           .split_needs_gro = GENERATE(false, true),
           .zcrx = GENERATE(false, true)});
}

TEST_CASE("the next process can undo the changes of one killed at any moment in another container")
{
    check({.after = GENERATE(false, true), .in_a_container = true, .zcrx = GENERATE(false, true)});
}

TEST_CASE("the next session undoes the changes of a killed one, with a notice")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    auto killed = bench.open(2, 1);
    auto flow = steer(*killed, here, there);
    bench.kill(std::move(killed), 1, std::move(flow));
    bench.notices.clear();
    {
        auto const lease = bench.open(1, 2);
        CHECK(lease->queues() == queues{3});
        CHECK(bench.hardware.state.rules.empty());
        CHECK_THAT(joined(bench.notices), ContainsSubstring("process 1 has ended without undoing its changes"));
        CHECK_THAT(joined(bench.notices),
                   ContainsSubstring("rule 1023 (tcp4 10.77.0.2:4000 -> 10.77.0.1:5000) removed"));
    }
    CHECK(bench.hardware.state == before);
}

TEST_CASE("recovery reports each setting that it restored")
{
    lease_bench bench;
    bench.hardware.state.automatic_means_on = true;
    bench.kill(bench.open(2), 1);
    CHECK(bench.recover() == std::vector<std::string>{"fake0: process 1 has ended without undoing its changes",
                                                      "fake0: rss-table restored to 0 1 2 3 0 1 2 3",
                                                      "fake0: ntuple-filters restored to off",
                                                      "fake0: hds-thresh restored to 256 bytes",
                                                      "fake0: tcp-data-split restored to automatic"});
}
