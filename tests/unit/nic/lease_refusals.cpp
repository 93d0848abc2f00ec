// SPDX-License-Identifier: Apache-2.0
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

TEST_CASE("a session that finds all queues leased learns by whom")
{
    lease_bench bench;
    bench.hardware.state.channels.combined_max = 4;
    auto const other = bench.open(3, 7);
    auto const error = failure_of(bench, 1, 8);
    CHECK(error.code() == gpurx::errc::queue_busy);
    CHECK_THAT(error.why().advice, ContainsSubstring("queues 1, 2, 3 used by the gpurx session of process 7"));
    CHECK(bench.hardware.state.bound.size() == 3);
}

TEST_CASE("queues that others use are passed over, and named when there are no others")
{
    lease_bench bench;
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
        by = "rule 1 of another program";
    }
    SECTION("somebody else's RSS context")
    {
        nic.contexts[5] = {3, 3, 3, 3, 3, 3, 3, 3};
        by = "RSS context 5 of another program";
    }
    SECTION("a lease to a virtual device")
    {
        bench.hardware.leased_away = {3};
        by = "a virtual device";
    }
    SECTION("somebody who keeps it out of RSS, and has not leased it yet")
    {
        nic.table = {0, 1, 2, 0, 1, 2, 0, 1};
        nic.table_configured = true;
        bench.hardware.configured_size = 8;
        by = "another program, which keeps it out of RSS";
    }
    auto const before = nic;
    {
        auto const lease = bench.open(2);
        CHECK(lease->queues() == queues{1, 2});
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
    lease_bench bench;
    auto const before = bench.hardware.state;
    auto const error = failure_of(bench, 8);
    CHECK(error.code() == errno_code(ERANGE));
    CHECK_THAT(error.what(), ContainsSubstring("8 queues wanted, 7 possible"));
    CHECK(bench.hardware.state == before);
}

TEST_CASE("a queue that the kernel is just cleaning up is waited for")
{
    lease_bench bench;
    auto& nic = bench.hardware.state;
    nic.channels.combined_max = 4;
    nic.bound[3] = 77;
    auto environment = bench.environment(1);
    environment.busy_timeout = std::chrono::seconds{30};
    // A process that looks at the queues sees them free at its third look.
    int looks = 0;
    bench.hardware.looked_at_queues = [&] {
        if (++looks == 3)
            nic.bound.clear();
    };
    queue_lease_config options;
    options.interface = "fake0";
    options.rx_queues = 3;
    auto const lease =
        queue_lease::open(std::move(options), std::make_unique<fake_device>(bench.hardware), std::move(environment));
    CHECK(lease->queues() == queues{1, 2, 3});
}

TEST_CASE("queues of living sessions are not waited for, as their owners cannot give them back meanwhile")
{
    lease_bench bench;
    bench.hardware.state.channels.combined_max = 4;
    auto const held = bench.open(3);
    auto environment = bench.environment(2);
    environment.busy_timeout = std::chrono::seconds{2};
    int looks = 0;
    bench.hardware.looked_at_queues = [&] { ++looks; };
    queue_lease_config options;
    options.interface = "fake0";
    auto device = std::make_unique<fake_device>(bench.hardware);
    CHECK_THROWS_AS(queue_lease::open(std::move(options), std::move(device), std::move(environment)),
                    gpurx::system_error);
    // Once to choose queues, and once to set back what was changed.
    CHECK(looks <= 2);
}

TEST_CASE("a driver that takes memory and does not use it is found out")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    bench.hardware.after = [&bench](std::string const& name) {
        if (name == "bind")
            bench.hardware.state.bound.clear();
    };
    auto const error = failure_of(bench);
    CHECK(error.code() == errno_code(EIO));
    CHECK(bench.hardware.state == before);
}

TEST_CASE("header split that the NIC allows only with GRO in hardware gets it")
{
    lease_bench bench;
    bench.hardware.split_needs_gro = true;
    {
        auto const lease = bench.open();
        CHECK(bench.hardware.state.hardware_gro);
        CHECK(bench.hardware.state.split == data_split::on);
    }
    CHECK_FALSE(bench.hardware.state.hardware_gro);

    bench.hardware.can_change_gro = false;
    CHECK(failure_of(bench).why().kernel_message == "TCP-data-split is not supported when GRO HW is disabled");
}

TEST_CASE("a NIC that has neither header split nor GRO in hardware is refused for the first")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    bench.hardware.can_change_split = false;
    bench.hardware.before = [](std::string const& name) {
        if (name == "gro")
            throw gpurx::system_error{errno_code(EOPNOTSUPP), {"set rx-gro-hw", "fake0", {}, {}}};
    };
    CHECK(failure_of(bench).why().kernel_message == "setting TCP data split is not supported");
    CHECK(bench.hardware.state == before);
}

TEST_CASE("a setting that was refused leaves nothing to put back")
{
    lease_bench bench;
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

TEST_CASE("a refusal of the NIC has the kernel's message")
{
    lease_bench bench;
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
    lease_bench bench;
    auto lease = bench.open();
    bench.hardware.present = false;
    CHECK_FALSE(lease->sample());
    lease.reset();
    REQUIRE(bench.notices.size() == 1);
    CHECK_THAT(bench.notices[0], ContainsSubstring("fake0 is gone"));
    CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
}

TEST_CASE("a journal of another boot is dropped")
{
    lease_bench bench;
    auto lease = bench.open();
    auto text = bench.journal_text();
    lease.reset();
    auto const before = bench.hardware.state;
    bench.write_journal(text.replace(text.find("this-boot"), 9, "last-boot"));
    CHECK_THAT(joined(bench.recover()), ContainsSubstring("dropped a journal of another boot or device"));
    CHECK(bench.hardware.state == before);
    CHECK_FALSE(std::filesystem::exists(bench.journal_path()));
}

TEST_CASE("a damaged journal stops everything before anything is changed")
{
    lease_bench bench;
    bench.write_journal("gpurx-journal 1\nboot this-boot\ndevice fake0 4 1\nchange nonsense\n");
    std::filesystem::permissions(bench.directory() / "state", std::filesystem::perms::owner_all);
    auto const before = bench.now();
    auto const error = failure_of(bench);
    CHECK(error.code() == gpurx::errc::journal_invalid);
    CHECK_THAT(error.what(), ContainsSubstring("ifindex4-netns1.journal") && ContainsSubstring("line 4"));
    CHECK(bench.hardware.changes.empty());
    CHECK(bench.now().journal == before.journal);
}
