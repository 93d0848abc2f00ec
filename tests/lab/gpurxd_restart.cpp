// SPDX-License-Identifier: Apache-2.0
//
// Clients of gpurxd, and gpurxd itself, are killed: what goes on, and what is left on the NIC.
#include <fmt/format.h>
#include <sys/types.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <random>
#include <string>
#include <thread>

#include "bed.hpp"
#include "daemon.hpp"
#include "nic.hpp"
#include "unprivileged.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
namespace detail = gpurx::detail;

namespace {

std::uint64_t printed_seed()
{
    auto const* const text = std::getenv("GPURX_TEST_SEED");  // NOLINT(concurrency-mt-unsafe)
    auto const seed = text != nullptr ? std::stoull(text) : std::random_device{}();
    fmt::print("GPURX_TEST_SEED={} repeats this choice of moments\n", seed);
    return seed;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "when a client of gpurxd is killed, its queues and rules go back", "[gpurxd]")
{
    running_daemon daemon;
    auto const* const rounds_text = std::getenv("GPURX_TEST_KILLS");  // NOLINT(concurrency-mt-unsafe)
    auto const rounds = rounds_text != nullptr ? std::stoul(rounds_text) : 8UL;
    std::mt19937_64 random{printed_seed()};
    auto const begin = std::chrono::steady_clock::now();
    {
        peer_sender sender{family::v4, {9, stream_bytes}};
        unprivileged_program receiver{receives_from(sender.endpoint(), way::loan)};
        CHECK(receiver.succeeds());
    }
    auto const life = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
    unsigned with_queues = 0;
    unsigned with_rules = 0;
    for (unsigned long i = 0; i < rounds; ++i) {
        peer_sender sender{family::v4, {9, stream_bytes}};
        unprivileged_program receiver{receives_from(sender.endpoint(), way::loan)};
        // Most of a life is before the queues are there: every other one is met after that.
        bool const late = i % 2 == 1;
        REQUIRE((!late || comes_true([] { return !journal_now().owners.empty(); })));
        auto const longest = static_cast<std::uint64_t>(life.count()) / (late ? 3 : 1);
        std::this_thread::sleep_for(std::chrono::microseconds{random() % (longest + 1)});
        auto const left = journal_now();
        receiver.kill();
        with_queues += left.owners.empty() ? 0 : 1;
        with_rules += !left.owners.empty() && !left.owners[0].rules.empty() ? 1 : 0;
        sender.stop();
        CAPTURE(i, detail::serialise(left));
        REQUIRE(settled(settings_before()));
        REQUIRE(pools_vanish());
    }
    fmt::print("{} clients killed within {} ms, {} of them with queues, {} with rules\n", rounds, life.count() / 1000,
               with_queues, with_rules);
}

TEST_CASE_METHOD(unchanged_nic, "flows go on when gpurxd is killed, and nothing is left when it is back", "[gpurxd]")
{
    running_daemon daemon;
    peer_sender sender{family::v4, {10, stream_bytes}};
    sender.pause_at(mebibyte);
    bool const client_s_own = GENERATE(false, true);
    CAPTURE(client_s_own);
    unprivileged_program receiver{receives_from(sender.endpoint(), way::read, false, client_s_own)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));
    auto const owners = journal_now().owners;
    REQUIRE(owners.size() == 1);
    if (client_s_own) {
        // The process that serves it: the memory is unbound, what comes then arrives in host memory.
        ::kill(owners[0].key.pid, SIGKILL);
        CHECK(settled(settings_before()));
        sender.resume();
    } else {
        daemon.kill(SIGKILL);
        daemon.start();
        CHECK(journal_now().owners == owners);
        sender.resume();
    }
    auto const said = receiver.report();
    // Who has lost its binding cannot look at it.
    CHECK((said.empty() || (client_s_own && said == "not so: the pool can be looked at\n")));
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd leaves nothing on the NIC when it ends with all its clients", "[gpurxd]")
{
    running_daemon daemon;
    peer_sender sender{family::v4, {13, stream_bytes}};
    sender.pause_at(mebibyte);
    unprivileged_program receiver{receives_from(sender.endpoint(), way::read, false, true)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));
    auto const owners = journal_now().owners;
    REQUIRE(owners.size() == 1);
    // As `systemctl kill` does; nobody is there afterwards to put anything back.
    daemon.kill(SIGTERM);
    ::kill(owners[0].key.pid, SIGTERM);
    CHECK(settled(settings_before()));
    sender.resume();
    auto const said = receiver.report();
    CHECK((said.empty() || said == "not so: the pool can be looked at\n"));
    CHECK(pools_vanish());
    daemon.start();
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd undoes the changes of its predecessor's clients", "[gpurxd]")
{
    running_daemon daemon;
    peer_sender sender{family::v4, {14, stream_bytes}};
    sender.pause_at(mebibyte);
    unprivileged_program receiver{receives_from(sender.endpoint(), way::read, false, true)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));
    auto const owners = journal_now().owners;
    REQUIRE(owners.size() == 1);
    daemon.kill(SIGKILL);
    daemon.start();
    ::kill(owners[0].key.pid, SIGKILL);
    CHECK(settled(settings_before()));
    sender.resume();
    auto const said = receiver.report();
    CHECK((said.empty() || said == "not so: the pool can be looked at\n"));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "several flows go on while gpurxd is killed and restarted, at any moment", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 clients 3 opens 6000\n"};
    constexpr std::uint64_t bytes = 8 * stream_bytes;
    std::mt19937_64 random{printed_seed()};
    std::list<peer_sender> senders;
    std::list<unprivileged_program> receivers;
    for (unsigned i = 0; i < 3; ++i) {
        auto& sender = senders.emplace_back(family::v4, stream{50 + i, bytes});
        sender.pause_at(mebibyte);
        receivers.emplace_back(
            receives_from(sender.endpoint(), i % 2 == 0 ? way::read : way::loan, false, false, bytes));
    }
    REQUIRE(comes_true([&] { return std::ranges::all_of(senders, [](auto& one) { return one.sent() >= mebibyte; }); }));
    auto const owners = journal_now().owners;
    REQUIRE(owners.size() == 3);
    unsigned kills = 0;
    for (auto step = 2 * mebibyte; step < bytes; step += 2 * mebibyte) {
        for (auto& sender : senders)
            sender.pause_at(step);
        std::this_thread::sleep_for(std::chrono::microseconds{random() % 30'000});
        daemon.kill(SIGKILL);
        daemon.start();
        ++kills;
        REQUIRE(
            comes_true([&] { return std::ranges::all_of(senders, [&](auto& one) { return one.sent() >= step; }); }));
    }
    // Nobody has put back what is in use.
    CHECK(journal_now().owners == owners);
    for (auto& sender : senders)
        sender.resume();
    for (auto& receiver : receivers)
        CHECK(receiver.succeeds());
    fmt::print("gpurxd was killed and restarted {} times beside 3 flows\n", kills);
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}
