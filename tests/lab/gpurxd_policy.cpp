// SPDX-License-Identifier: Apache-2.0
//
// gpurxd's policy: who gets how much, who is refused, and what people can read of it.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/dma-heap.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/syscalls.hpp"
#include "bed.hpp"
#include "child.hpp"
#include "daemon.hpp"
#include "lease/daemon_channel.hpp"
#include "lease/daemon_protocol.hpp"
#include "nic.hpp"
#include "session/session_state.hpp"
#include "unprivileged.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
namespace detail = gpurx::detail;

namespace {

std::uint64_t refusals(std::string const& page, std::string_view request, std::string_view reason)
{
    auto const line = fmt::format("\ngpurxd_refusals_total{{request=\"{}\",reason=\"{}\"}} ", request, reason);
    auto const at = page.find(line);
    REQUIRE(at != std::string::npos);
    return std::stoull(page.substr(at + line.size()));
}

// A set of capabilities of a process, as /proc has it; 0: there is no such process.
std::uint64_t rights_of(pid_t pid, std::string const& which)
{
    std::ifstream file{fmt::format("/proc/{}/status", pid)};
    std::string word;
    while (file >> word) {
        if (word == which + ":")
            return file >> word ? std::stoull(word, nullptr, 16) : 0;
    }
    return 0;
}

// Connects as that user; this process is root again afterwards, and so are its threads.
std::unique_ptr<detail::daemon_channel> connected_as(uid_t user, std::string const& socket)
{
    REQUIRE(::seteuid(user) == 0);
    std::unique_ptr<detail::daemon_channel> channel;
    try {
        channel = std::make_unique<detail::daemon_channel>(socket, 120s);
    } catch (gpurx::system_error const&) {
        channel.reset();
    }
    REQUIRE(::seteuid(0) == 0);
    return channel;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "gpurxd gives nothing to those whom the policy does not name", "[gpurxd]")
{
    running_daemon daemon{"allow user 1 interface dms0\nallow user 65534 interface dms0 memory 4MiB\n"};
    unprivileged_program receiver{[](child_report& child) {
        drop_rights(false);
        try {
            auto const session = open_session(8 * mebibyte, {.max_flows = 2});
            child.expect(false, "refused");
        } catch (gpurx::system_error const& error) {
            child.expect(std::string{error.what()}.find("(4 MiB allowed)") != std::string::npos, error.what());
        }
        gpurx::rx_session const fallen_back{{.interface = "lo", .max_flows = 2},
                                            gpurx::device_memory::on_host(8 * mebibyte)};
        auto const said = fallen_back.explain();
        child.expect(said.find("for user 65534") != std::string::npos, said.c_str());
    }};
    CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd binds no memory that may only be read", "[gpurxd]")
{
    detail::unique_fd const heap{::open("/dev/dma_heap/system", O_RDONLY | O_CLOEXEC)};
    if (!heap)
        SKIP("this kernel has no /dev/dma_heap/system, and udmabuf's memory can always be written");
    running_daemon daemon;
    for (int const flags : {O_RDONLY, O_RDWR}) {
        bool const may_write = flags == O_RDWR;
        dma_heap_allocation_data what{};
        what.len = 8 * mebibyte;
        what.fd_flags = static_cast<std::uint32_t>(flags | O_CLOEXEC);
        REQUIRE(::ioctl(heap.get(), DMA_HEAP_IOCTL_ALLOC, &what) == 0);
        detail::unique_fd const memory{static_cast<int>(what.fd)};
        unprivileged_program client{[&](child_report& child) {
            drop_rights(false);
            detail::daemon_channel channel{daemon.socket(), 60s};
            auto const reply = answer_to(channel, detail::open_request{near_interface, 1, 0}, memory.get());
            child.expect(reply && refuses(reply, EACCES) != may_write,
                         may_write ? "it may be written" : "it may only be read");
        }};
        CHECK(client.succeeds());
    }
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "a client that opens and disconnects in a loop is slowed down, and the NIC keeps still",
                 "[gpurxd]")
{
    running_daemon daemon{"allow user 20001 interface dms0 opens 2\n"};
    unprivileged_program impatient{[&](child_report& child) {
        drop_rights(false, 20001);
        auto const memory = gpurx::device_memory::on_host(8 * mebibyte);
        auto const dmabuf = gpurx::detail::session_access::state(memory)->dmabuf_fd();
        unsigned opened = 0;
        unsigned refused = 0;
        for (int i = 0; i < 6; ++i) {
            detail::daemon_channel channel{daemon.socket(), 60s};
            auto const reply = answer_to(channel, detail::open_request{near_interface, 1, 0}, dmabuf);
            opened += reply && std::holds_alternative<detail::opened_reply>(*reply) ? 1 : 0;
            refused += refuses(reply, EAGAIN) ? 1 : 0;
            channel.finish();
            while (channel.receive())
                continue;
        }
        // Two a minute, and the next one has to wait for half a minute: too long for an answer.
        child.expect(opened >= 2 && refused >= 1, fmt::format("{} opened, {} refused", opened, refused).c_str());
    }};
    CHECK(impatient.succeeds());
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd logs users with their queues, and refusals with their reasons", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 memory 8MiB\n"};
    unprivileged_program client{[&](child_report&) {
        drop_rights(false);
        plain_client const one{daemon.socket()};
    }};
    CHECK(client.succeeds());
    unprivileged_program other{[&](child_report& child) {
        drop_rights(false, 20000);
        detail::daemon_channel channel{daemon.socket(), 60s};
        auto const memory = gpurx::device_memory::on_host(8 * mebibyte);
        auto const dmabuf = gpurx::detail::session_access::state(memory)->dmabuf_fd();
        child.expect(refuses(answer_to(channel, detail::open_request{near_interface, 1, 0}, dmabuf), EACCES),
                     "refused");
    }};
    CHECK(other.succeeds());
    CHECK(comes_true([&] { return says(daemon.log(), "has returned dms0 after "); }));
    auto const log = daemon.log();
    CAPTURE(log);
    CHECK(says(log, "user 65534 (nobody) has queue "));
    CHECK(says(log, " of dms0, with 8 MiB of memory\n"));
    CHECK(says(log, "user 20000 was refused: open dms0 for user 20000: Permission denied"));
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "metrics show the queues of clients while they have them", "[gpurxd]")
{
    running_daemon daemon;
    peer_sender sender{family::v4, {11, stream_bytes}};
    sender.pause_at(mebibyte);
    unprivileged_program receiver{receives_from(sender.endpoint(), way::read)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));
    std::string page;
    CHECK(comes_true([&] {
        page = daemon.page();
        return says(page, "\ngpurxd_rules{interface=\"dms0\",user=\"65534\"} 1\n");
    }));
    CAPTURE(page);
    CHECK(says(page, "\ngpurxd_clients{interface=\"dms0\",user=\"65534\"} 1\n"));
    CHECK(says(page, "\ngpurxd_queues{interface=\"dms0\",user=\"65534\"} 1\n"));
    CHECK(says(page, "\ngpurxd_memory_bytes{interface=\"dms0\",user=\"65534\"} 8388608\n"));
    CHECK(says(page, "\ngpurxd_limit{interface=\"dms0\",user=\"65534\",limit=\"memory_bytes\"} 67108864\n"));
    // The ring holds pages as long as the queue has the memory.
    CHECK(says(page, "\ngpurxd_pool_pages_in_flight{interface=\"dms0\"} "));
    CHECK_FALSE(says(page, "\ngpurxd_pool_pages_in_flight{interface=\"dms0\"} 0\n"));
    CHECK(says(page, "\ngpurxd_queue_allocation_failures_total{interface=\"dms0\",queue=\""));
    // The process that holds all of that for the client has one right, and can get no other.
    auto const owners = journal_now().owners;
    REQUIRE(owners.size() == 1);
    for (auto const* const which : {"CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb"}) {
        CAPTURE(which);
        CHECK(rights_of(owners[0].key.pid, which) == std::uint64_t{1} << CAP_NET_ADMIN);
    }
    sender.resume();
    CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
    CHECK(comes_true([&] { return !says(daemon.page(), "gpurxd_clients"); }));
}

TEST_CASE_METHOD(unchanged_nic, "a hundred clients and a greedy one do not disturb a session that receives", "[gpurxd]")
{
    running_daemon daemon{
        "allow user 65534 interface dms0\n"
        "allow user * interface dms0 clients 2\n"};
    auto const memory = gpurx::device_memory::on_host(8 * mebibyte);
    auto const dmabuf = gpurx::detail::session_access::state(memory)->dmabuf_fd();
    peer_sender sender{family::v4, {30, stream_bytes}};
    sender.pause_at(mebibyte);
    unprivileged_program receiver{receives_from(sender.endpoint(), way::read)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));

    // Counts go on where an earlier gpurxd of this boot ended.
    auto const before = daemon.page();
    std::vector<std::unique_ptr<detail::daemon_channel>> hundred;
    std::vector<std::unique_ptr<detail::daemon_channel>> greedy;
    // The greedy one has as many as it is let have, and says nothing.
    auto const begin = std::chrono::steady_clock::now();
    for (uid_t i = 0; i < 70; ++i)
        greedy.push_back(connected_as(20000, daemon.socket()));
    for (uid_t i = 0; i < 100; ++i) {
        hundred.push_back(connected_as(10000 + i, daemon.socket()));
        REQUIRE(hundred.back());
        hundred.back()->send(detail::encode(detail::open_request{near_interface, 1, 0}), dmabuf);
    }
    sender.resume();
    CHECK(receiver.succeeds());
    std::size_t opened = 0;
    std::size_t refused = 0;
    for (auto& channel : hundred) {
        for (auto answered = false; !answered;) {
            auto const message = channel->receive();
            REQUIRE(message);
            auto const parsed = detail::parse_daemon_reply(message->bytes);
            auto const& reply = std::get<detail::daemon_reply>(parsed);
            answered = !std::holds_alternative<detail::notice_reply>(reply);
            opened += std::holds_alternative<detail::opened_reply>(reply) ? 1 : 0;
            refused += std::holds_alternative<detail::refused_reply>(reply) ? 1 : 0;
        }
    }
    auto const took = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
    fmt::print("of 100 clients at once {} got queues, all an answer within {} s\n", opened, took.count());
    CHECK(opened + refused == 100);
    // All but the one that other packets need.
    CHECK(opened >= 8);
    std::string page;
    CHECK(comes_true([&] {
        page = daemon.page();
        return refusals(page, "open", "nic") - refusals(before, "open", "nic") == refused &&
               refusals(page, "connect", "crowded") - refusals(before, "connect", "crowded") == 6 &&
               says(page, "\ngpurxd_clients{interface=\"dms0\",user=");
    }));
    CAPTURE(page);
    // And who comes next has their queues, while the greedy one asks on.
    hundred.clear();
    REQUIRE(comes_true([] { return journal_now().owners.empty(); }));
    for (auto& channel : greedy) {
        try {
            if (channel)
                channel->send(std::vector<std::byte>(100));
        } catch (gpurx::system_error const&) {
            continue;  // it has been hung up on
        }
    }
    peer_sender another{family::v4, {31, stream_bytes}};
    unprivileged_program next{receives_from(another.endpoint(), way::read)};
    CHECK(next.succeeds());
    greedy.clear();
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

#ifdef GPURX_DOCTOR
TEST_CASE_METHOD(unchanged_nic, "gpurx-doctor reports whether gpurxd allows a user the interface", "[gpurxd]")
{
    auto const doctor_of = [](unsigned user) {
        return output_of(fmt::format("setpriv --reuid {0} --regid {0} --clear-groups --bounding-set=-all {1} {2}; true",
                                     user, GPURX_DOCTOR, near_interface));
    };
    running_daemon daemon;
    auto const allowed = doctor_of(65534);
    CAPTURE(allowed);
    CHECK(says(allowed, "gpurxd would set up queues of dms0 for user 65534"));
    auto const not_allowed = doctor_of(4711);
    CAPTURE(not_allowed);
    CHECK(says(not_allowed, "gpurxd's policy allows user 4711 nothing of dms0"));
    CHECK(says(not_allowed, "add the line 'allow user 4711 interface dms0'"));
    CHECK(says(not_allowed, "add a line for it to"));
    CHECK(settled(settings_before()));
}
#endif

TEST_CASE_METHOD(unchanged_nic, "a session that gpurxd refuses falls back, and a program learns why", "[gpurxd]")
{
    running_daemon daemon{"allow user 1 interface dms0\n"};
    unprivileged_program program{[](child_report& child) {
        drop_rights(false);
        gpurx::rx_session const session{{.interface = near_interface}, gpurx::device_memory::on_host(8 * mebibyte)};
        child.expect(session.transport() == gpurx::transport::copy, session.explain().c_str());
        child.expect(session.why_not_devmem() == gpurx::transport_obstacle::refused_by_gpurxd,
                     std::string{to_string(session.why_not_devmem())}.c_str());
    }};
    CHECK(program.succeeds());
}
