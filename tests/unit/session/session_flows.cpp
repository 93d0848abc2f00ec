// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "awake_watchdog.hpp"
#include "base/byte_size.hpp"
#include "devmem_session.hpp"
#include "eventually.hpp"
#include "session/session_state.hpp"

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using gpurx::error_code;
using gpurx::detail::flow_wait;
using gpurx::detail::mebibyte;
using gpurx::test::awake_watchdog;
using gpurx::test::devmem_session;
using gpurx::test::eventually;
using gpurx::test::nic_log;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;

TEST_CASE("max_flows flows may exist at one time")
{
    auto const session = devmem_session({.max_flows = 2}, std::make_shared<nic_log>());
    error_code code;
    auto first = session->admit(code);
    auto const second = session->admit(code);
    CHECK_FALSE(code.failed());
    CHECK(session->admit(code) == nullptr);
    CHECK(code == gpurx::errc::too_many_flows);
    first.reset();
    CHECK(session->admit(code) != nullptr);
    CHECK_FALSE(code.failed());
}

TEST_CASE("counters outlive their flow, and loans have a high-water mark of the session's own")
{
    auto const session = devmem_session({}, std::make_shared<nic_log>());
    error_code code;
    auto one = session->admit(code);
    auto two = session->admit(code);
    one->counters.device_bytes.add(100);
    two->counters.device_bytes.add(10);
    two->counters.host_bytes.add(5);
    session->tokens_taken(3);
    session->tokens_taken(4);
    session->tokens_returned(5);
    CHECK(session->total().device_bytes == 110);
    CHECK(session->total().tokens_out == 2);
    CHECK(session->total().tokens_high_water == 7);
    two.reset();
    one->counters.device_bytes.add(100);
    CHECK(session->total().device_bytes == 210);
    CHECK(session->total().host_bytes == 5);
    one.reset();
    CHECK(session->total().device_bytes == 210);
    CHECK(session->total().tokens_high_water == 7);
}

TEST_CASE("a flow that is locked up is ended, and another one is not")
{
    // The pool is full, packets find no page, and one of two waiting flows has data that it cannot read.
    auto const log = std::make_shared<nic_log>();
    log->in_flight = 8 * mebibyte / 4096;
    auto const session = devmem_session({.lock_up_limit = 100ms}, log);

    asio::io_context context;
    tcp::acceptor acceptor{context, {asio::ip::address_v4::loopback(), 0}};
    tcp::socket sender{context};
    tcp::socket idle_sender{context};
    sender.connect(acceptor.local_endpoint());
    auto locked = acceptor.accept();
    idle_sender.connect(acceptor.local_endpoint());
    auto idle = acceptor.accept();
    asio::write(sender, asio::buffer("out of order, let us say"));

    error_code code;
    auto const locked_flow = session->admit(code);
    auto const idle_flow = session->admit(code);
    locked_flow->set_socket(locked.native_handle());
    idle_flow->set_socket(idle.native_handle());
    CHECK(log->samples == 0);
    idle_flow->set_waiting(flow_wait::data);
    awake_watchdog other{100ms};
    REQUIRE(other.looks(8));
    CHECK_FALSE(idle_flow->locked_up());
    CHECK(log->samples == 0);

    session->tokens_taken(1);
    log->failures_stand_still = true;
    locked_flow->set_waiting(flow_wait::data);
    REQUIRE(eventually([&] { return log->samples >= 8; }));
    CHECK_FALSE(locked_flow->locked_up());

    session->tokens_returned(1);
    log->failures_stand_still = false;
    REQUIRE(eventually([&] { return locked_flow->locked_up(); }));
    CHECK_FALSE(idle_flow->locked_up());
    char byte = 0;
    sender.read_some(asio::buffer(&byte, 1), code);
    CHECK(code == asio::error::connection_reset);
    locked_flow->set_waiting(flow_wait::nothing);
    locked_flow->set_socket(-1);
    idle_flow->set_socket(-1);
}

TEST_CASE("the watchdog counts the time without a free page")
{
    auto const log = std::make_shared<nic_log>();
    auto const session = devmem_session({.lock_up_limit = 40ms}, log);
    error_code code;
    auto const flow = session->admit(code);
    session->tokens_taken(2048);
    flow->set_waiting(flow_wait::data);
    REQUIRE(eventually([&] { return log->samples > 3; }));
    auto account = session->pool();
    REQUIRE(account);
    CHECK(account->dry_time == 0ns);  // packets found no page, but there were some
    CHECK(account->high_water == 0);
    CHECK(account->allocation_failures > 0U);
    log->in_flight = 2048;
    REQUIRE(eventually([&] { return session->pool()->dry_time > 0ns; }));
    log->failures_stand_still = true;
    log->in_flight = 5;
    CHECK(session->pool()->high_water == 2048);
    CHECK(session->pool()->in_queues == 5);  // the ring of this NIC is not known
    flow->set_waiting(flow_wait::nothing);
    session->tokens_returned(2048);
}

TEST_CASE("a session without a lock-up limit never looks")
{
    auto const log = std::make_shared<nic_log>();
    auto const session = devmem_session({.lock_up_limit = 0ms}, log);
    error_code code;
    auto const flow = session->admit(code);
    flow->set_waiting(flow_wait::data);
    awake_watchdog other{40ms};
    REQUIRE(other.looks(4));
    CHECK(log->samples == 0);
    flow->set_waiting(flow_wait::nothing);
}

TEST_CASE("flows that wait in vain for pages give a notice with the holders")
{
    auto const log = std::make_shared<nic_log>();
    std::mutex mutex;
    std::vector<std::string> said;
    auto const session = devmem_session({.interface = "fake0",
                                         .lock_up_limit = 40ms,
                                         .notice =
                                             [&](std::string_view sentence) {
                                                 std::scoped_lock const lock{mutex};
                                                 said.emplace_back(sentence);
                                             }},
                                        log);
    asio::io_context context;
    tcp::acceptor acceptor{context, {asio::ip::address_v4::loopback(), 0}};
    std::array<tcp::socket, 3> peers{tcp::socket{context}, tcp::socket{context}, tcp::socket{context}};
    std::vector<tcp::socket> ends;
    std::vector<std::unique_ptr<gpurx::detail::flow_place>> flows;
    error_code code;
    for (auto& peer : peers) {
        peer.connect(acceptor.local_endpoint());
        ends.push_back(acceptor.accept());
        flows.push_back(session->admit(code));
        flows.back()->set_socket(ends.back().native_handle());
    }
    auto const name = [&](std::size_t i) { return gpurx::detail::connection_name(ends[i].native_handle()); };
    CHECK(name(0) == "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port()) +
                         " <- 127.0.0.1:" + std::to_string(peers[0].local_endpoint().port()));
    CHECK_THAT(session->explain(), StartsWith("explained\npages: ") && !ContainsSubstring("waits for"));

    // One flow has all its loans out, another left half of the memory to a stream; the third waits for data.
    flows[0]->on_loan = 4 * mebibyte;
    flows[0]->set_waiting(flow_wait::loans);
    flows[1]->in_reads = 3 * mebibyte;
    flows[1]->set_waiting(flow_wait::streams);
    session->tokens_taken(1792);
    CHECK_THAT(session->explain(),
               ContainsSubstring("\nwaits for its loans: " + name(0) + ": 4 MiB of 128 KiB on loan") &&
                   ContainsSubstring("\nwaits for GPU streams: " + name(1)) && !ContainsSubstring("starved"));
    log->in_flight = 2048;
    CHECK_THAT(session->explain(), !ContainsSubstring("starved"));
    flows[2]->set_waiting(flow_wait::data);
    auto const holders = "the program holds 1792 of 2048 pages (1024 on loan from " + name(0) + ", 768 read from " +
                         name(1) + " and waiting for GPU streams)";
    CHECK_THAT(session->explain(), ContainsSubstring("\nstarved: no page is free for arriving data; " + holders));
    auto const told = [&] {
        std::scoped_lock const lock{mutex};
        return !said.empty();
    };
    REQUIRE(eventually(told));
    CHECK(session->total().starved == 1);
    CHECK(flows[2]->counters.snapshot().starved == 1);
    {
        std::scoped_lock const lock{mutex};
        CHECK(said.size() == 1);
        CHECK_THAT(said[0],
                   StartsWith("fake0: no page is free for arriving data; waiting: " + name(2) + "; " + holders));
    }
    for (auto const& flow : flows) {
        flow->set_waiting(flow_wait::nothing);
        flow->set_socket(-1);
    }
}
