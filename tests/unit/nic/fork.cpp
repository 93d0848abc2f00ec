// SPDX-License-Identifier: Apache-2.0
//
// A forked child has copies of leases, and undoes nothing.
#include "base/fork.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <optional>
#include <utility>

#include "child.hpp"
#include "lease/device_journal.hpp"
#include "lease_bench.hpp"
#include "nic/netlink.hpp"

using namespace gpurx::detail;
using namespace gpurx::detail::test;
using gpurx::test::child_report;
using gpurx::test::in_child;

namespace {

bool is_open(int fd)
{
    return ::fcntl(fd, F_GETFD) >= 0;
}

int open_null()
{
    return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

}  // namespace

TEST_CASE("a child that drops a lease and its rules leaves NIC and journal to the parent")
{
    lease_bench bench;
    auto const before = bench.hardware.state;
    auto lease = bench.open(2);
    auto flow = steer(*lease, here, there);
    auto const nic = bench.hardware.state;
    auto const changes = bench.hardware.changes;
    auto const journal = bench.journal_text();
    auto const found = in_child([&](child_report& child) {
        flow.reset();
        lease.reset();
        child.expect(bench.hardware.state == nic, "the NIC is as it was");
        child.expect(bench.hardware.changes == changes, "nothing was asked of the NIC");
        child.expect(bench.journal_text() == journal, "the journal is as it was");
        child.expect(bench.notices.empty(), "nobody was told anything");
    });
    CHECK(found == "");
    CHECK(bench.journal_text() == journal);
    flow.reset();
    CHECK(bench.hardware.state.rules.empty());
    lease.reset();
    CHECK(bench.hardware.state == before);
}

TEST_CASE("a child may lease queues of its own beside its parent's")
{
    lease_bench bench;
    auto lease = bench.open(1, 1);
    auto const found = in_child([&](child_report& child) {
        auto const own = bench.open(1, 2);
        child.expect(own->queues() != lease->queues(), "they are others");
    });
    CHECK(found == "");
}

TEST_CASE("a netlink socket is not shared with a child: it would keep memory bound", "[native]")
{
    netlink::socket const before;
    netlink::socket taken;
    netlink::socket const moved{std::move(taken)};
    struct stat info {};
    int highest = 0;
    for (int fd = 0; fd < 64; ++fd)
        highest = is_open(fd) ? fd : highest;
    auto const found = in_child([&](child_report& child) {
        auto const sockets = [&] {
            int count = 0;
            for (int fd = 3; fd <= highest; ++fd)
                count += ::fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
            return count;
        };
        child.expect(sockets() == 0, "no socket is left");
        netlink::socket const own;
        child.expect(sockets() == 1, "it can have one of its own");
    });
    CHECK(found == "");
}

TEST_CASE("a child that drops its copy of a journal leaves the lock to the parent")
{
    lease_bench bench;
    auto const environment = bench.environment(1);
    device_key const key{environment.boot_id, "fake0", 4, environment.netns};
    std::optional<journal_file> held{std::in_place, environment.state_directory, key};
    auto const found = in_child([&](child_report& child) {
        held.reset();
        try {
            journal_file const second{environment.state_directory, key, std::chrono::milliseconds{20}};
            child.expect(false, "the parent holds the lock");
        } catch (gpurx::system_error const& refused) {
            child.expect(refused.code() == boost::system::errc::timed_out, "the parent holds the lock");
        }
    });
    CHECK(found == "");
    CHECK_THROWS_AS(journal_file(environment.state_directory, key, std::chrono::milliseconds{20}), gpurx::system_error);
}

TEST_CASE("an unshared descriptor is closed in a child, wherever it was moved to, and in no other way")
{
    unshared_fd const stays{open_null};
    unshared_fd taken{open_null};
    unshared_fd moved{std::move(taken)};
    unshared_fd assigned;
    {
        unshared_fd passing{open_null};
        assigned = std::move(passing);
    }
    unshared_fd const none{[] { return -1; }};
    CHECK_FALSE(none);
    auto const numbers = {stays.get(), moved.get(), assigned.get()};
    for (int const fd : numbers)
        CHECK(is_open(fd));
    auto const found = in_child([&](child_report& child) {
        for (int const fd : numbers)
            child.expect(!is_open(fd), "closed");
        child.expect(!stays && !moved && !assigned, "empty");
        int const reused = open_null();
        moved = unshared_fd{};
        child.expect(is_open(reused), "a number that means another file now is left alone");
    });
    CHECK(found == "");
    for (int const fd : numbers)
        CHECK(is_open(fd));
    auto const gone = moved.get();
    moved = unshared_fd{};
    CHECK_FALSE(is_open(gone));
}
