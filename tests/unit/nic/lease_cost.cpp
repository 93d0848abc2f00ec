// SPDX-License-Identifier: Apache-2.0
//
// What one connection's life costs: the same however many rules there are, and nothing that waits for a disk.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <cstdint>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "lease_bench.hpp"

using namespace gpurx::detail;
using namespace gpurx::detail::test;

namespace {

int syncs = 0;  // by this process, which has one thread here

}  // namespace

extern "C" int fsync(int fd)
{
    ++syncs;
    return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace {

// What this process has read and written so far.
struct traffic {
    std::uint64_t bytes = 0;
    std::uint64_t calls = 0;
};

traffic so_far()
{
    std::ifstream file{"/proc/self/io"};
    std::string name;
    std::uint64_t value = 0;
    traffic sum;
    while (file >> name >> value) {
        if (name == "rchar:" || name == "wchar:")
            sum.bytes += value;
        if (name == "syscr:" || name == "syscw:")
            sum.calls += value;
    }
    return sum;
}

// Connections come and go: `standing` stay.
class traffic_of_flows {
  public:
    explicit traffic_of_flows(lease_bench& bench) : lease_{bench.open(1, 1)} {}

    void stand(std::size_t standing)
    {
        while (flows_.size() < standing)
            flows_.push_back(steer(*lease_, here, at("10.77.0.2", port_++)));
    }
    // The life of `count` connections.
    void turn_over(int count)
    {
        for (int i = 0; i < count; ++i) {
            flows_.push_back(steer(*lease_, here, at("10.77.0.2", port_++)));
            flows_.pop_front();
        }
    }

  private:
    std::unique_ptr<queue_lease> lease_;
    std::deque<std::unique_ptr<steering_rule>> flows_;
    unsigned short port_ = 1;
};

journal read_journal(lease_bench const& bench)
{
    auto read = parse_journal(bench.journal_text());
    REQUIRE(std::holds_alternative<journal>(read));
    return std::get<journal>(std::move(read));
}

}  // namespace

TEST_CASE("a connection costs the same beside a thousand rules as beside one")
{
    lease_bench bench;
    traffic_of_flows flows{bench};
    struct price {
        std::uint64_t bytes = 0;
        std::uint64_t calls = 0;
        int syncs = 0;
        unsigned listings = 0;
    };
    auto const price_beside = [&](std::size_t standing) {
        flows.stand(standing);
        constexpr int count = 20;
        auto const nothing = so_far();
        auto const before = so_far();
        syncs = 0;
        bench.hardware.listings = 0;
        flows.turn_over(count);
        auto const after = so_far();
        auto const overhead = before.bytes - nothing.bytes;
        return price{(after.bytes - before.bytes - overhead) / count, (after.calls - before.calls) / count, syncs,
                     bench.hardware.listings};
    };
    auto const one = price_beside(1);
    auto const thousand = price_beside(1000);
    CHECK(one.syncs == 0);
    CHECK(thousand.syncs == 0);
    CHECK(one.listings == 0);
    CHECK(thousand.listings == 0);
    CHECK(one.bytes < 500);
    CHECK(thousand.bytes < 500);
    CHECK(thousand.calls <= one.calls);
}

TEST_CASE("a journal that is added to for long does not grow without end")
{
    lease_bench bench;
    traffic_of_flows flows{bench};
    flows.stand(10);
    syncs = 0;
    std::uintmax_t largest = 0;
    for (int i = 0; i < 30; ++i) {
        flows.turn_over(100);
        largest = std::max(largest, std::filesystem::file_size(bench.journal_path()));
    }
    CHECK(largest > 60 << 10);
    CHECK(largest < 80 << 10);
    CHECK(syncs > 0);
    CHECK(syncs < 30);
    CHECK(read_journal(bench).owners[0].rules.size() == 10);
}

TEST_CASE("two sessions that take turns know of each other's rules")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    auto first = bench.open(1, 1);
    auto second = bench.open(1, 2);
    std::deque<std::unique_ptr<steering_rule>> flows;
    for (unsigned short port = 1; port <= 60; ++port) {
        auto& lease = port % 3 == 0 ? *first : *second;
        flows.push_back(steer(lease, here, at("10.77.0.2", port)));
        gpurx::error_code code;
        gpurx::diagnostics why;
        CHECK_FALSE((port % 3 == 0 ? *second : *first).steer_flow(-1, here, at("10.77.0.2", port), code, why));
        CHECK(code == boost::system::errc::file_exists);
        if (port % 4 == 0)
            flows.pop_front();
    }
    auto const log = read_journal(bench);
    CHECK(log.owners[0].rules.size() + log.owners[1].rules.size() == flows.size());
    CHECK(bench.hardware.state.rules.size() == flows.size());
    for (auto const& owner : log.owners) {
        for (auto const& rule : owner.rules)
            CHECK(bench.hardware.state.rules.at(rule.id.value()).rule == rule.rule);
    }
    flows.clear();
    CHECK(read_journal(bench).owners[0].rules.empty());
    first.reset();
    second.reset();
    CHECK(bench.hardware.state == before);
    CHECK(bench.notices.empty());
}

TEST_CASE("a line that was cut off does not run into the next one")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    auto lease = bench.open(1, 1);
    auto flow = steer(*lease, here, there);
    bench.write_journal(bench.journal_text() + "at 0 pend");
    auto other = steer(*lease, here, at("10.77.0.2", 9));
    CHECK(read_journal(bench).owners[0].rules.size() == 2);
    flow.reset();
    other.reset();
    lease.reset();
    CHECK(bench.hardware.state == before);
}

TEST_CASE("a rule that cannot be recorded is not made, and the journal stays whole")
{
    lease_bench bench;
    auto lease = bench.open(1, 1);
    auto const first = steer(*lease, here, there);
    auto const journal_before = bench.journal_text();
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    auto* const handler = ::signal(SIGXFSZ, SIG_IGN);
    rlimit low = before;
    low.rlim_cur = journal_before.size() + 20;  // the middle of a line
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
    gpurx::error_code code;
    gpurx::diagnostics why;
    auto const refused = lease->steer_flow(-1, here, at("10.77.0.2", 9), code, why);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    ::signal(SIGXFSZ, handler);
    CHECK(refused == nullptr);
    CHECK(why.operation == "write journal");
    CHECK(bench.hardware.state.rules.size() == 1);
    CHECK(bench.journal_text() == journal_before);
    auto const second = steer(*lease, here, at("10.77.0.2", 9));
    CHECK(read_journal(bench).owners[0].rules.size() == 2);
}

TEST_CASE("a journal that was taken away is begun anew")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    auto lease = bench.open(1, 1);
    auto first = steer(*lease, here, there);
    std::filesystem::remove_all(bench.directory() / "state");
    auto flow = steer(*lease, here, at("10.77.0.2", 9));
    CHECK(read_journal(bench).owners[0].rules.size() == 1);
    first.reset();
    flow.reset();
    lease.reset();
    CHECK(bench.hardware.state.bound.empty());
}
