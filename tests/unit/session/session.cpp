// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <gpurx/metrics.hpp>
#include <gpurx/session.hpp>
#include <iostream>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "awake_watchdog.hpp"
#include "base/byte_size.hpp"
#include "base/syscalls.hpp"
#include "eventually.hpp"
#include "fake_nic.hpp"
#include "session/session_state.hpp"

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using gpurx::device_memory;
using gpurx::error_code;
using gpurx::rx_session;
using gpurx::detail::flow_wait;
using gpurx::detail::mebibyte;
using gpurx::detail::session_access;
using gpurx::detail::session_state;
using gpurx::test::fake_nic;
using gpurx::test::nic_log;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;
using gpurx::test::awake_watchdog;
using gpurx::test::eventually;

namespace {

std::shared_ptr<session_state> devmem_session(gpurx::rx_session_options options, std::shared_ptr<nic_log> log,
                                              std::uint32_t id = 77)
{
    auto const memory = device_memory::on_host(8 * mebibyte);
    return session_state::create(std::move(options), session_access::state(memory),
                                 std::make_unique<fake_nic>(std::move(log), id), "explained");
}

int receive_buffer_of(int socket)
{
    int doubled = 0;
    socklen_t size = sizeof doubled;
    ::getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &doubled, &size);
    return doubled / 2;
}

// Returns when the NIC has been asked all that it was to be asked so far.
void settle(gpurx::detail::session_state const& session)
{
    session.worker()->run([] {});
}

}  // namespace

TEST_CASE("transport copy works without an interface and says what it is")
{
    rx_session const session{{.transport = gpurx::transport::copy}, device_memory::on_host(mebibyte)};
    CHECK(session.transport() == gpurx::transport::copy);
    CHECK_THAT(session.explain(),
               StartsWith("copy: in use") && ContainsSubstring("devmem: not in use: transport copy was asked for"));
    CHECK(session.why_not_devmem() == gpurx::devmem_obstacle::copy_asked_for);
    CHECK(session.queues().empty());
    CHECK(session.receive_buffer_size() == 0);
    CHECK(session.memory().size() >= mebibyte);
    CHECK(session.stats() == gpurx::stats{});
}

TEST_CASE("automatic falls back to copy and says why, and what would help")
{
    SECTION("no interface")
    {
        rx_session const session{{}, device_memory::on_host(8 * mebibyte)};
        CHECK(session.transport() == gpurx::transport::copy);
        CHECK_THAT(session.explain(), StartsWith("copy: in use") && ContainsSubstring("\ndevmem: not in use: ") &&
                                          ContainsSubstring("rx_session_options::interface"));
        CHECK(session.why_not_devmem() == gpurx::devmem_obstacle::no_interface);
        CHECK(gpurx::to_string(session.why_not_devmem()) == "no_interface");
        gpurx::named_session const named{"loader", session};
        CHECK_THAT(gpurx::metrics_text({&named, 1}), ContainsSubstring("obstacle=\"no_interface\""));
    }
    SECTION("an interface that cannot do it, or memory that cannot be exported")
    {
        rx_session const session{{.interface = "lo", .state_directory = "/nonexistent/gpurx"},
                                 device_memory::on_host(8 * mebibyte)};
        CHECK(session.transport() == gpurx::transport::copy);
        CHECK_THAT(session.explain(), StartsWith("copy: in use") && ContainsSubstring("\ndevmem: not in use: "));
        CHECK_THAT(session.explain(), ContainsSubstring(session.memory().dmabuf_fd() < 0 ? "/dev/udmabuf" : "lo"));
        CHECK((session.why_not_devmem() == gpurx::devmem_obstacle::memory_not_exported) ==
              (session.memory().dmabuf_fd() < 0));
    }
}

TEST_CASE("an interface that is named and does not exist is an error, whatever was asked for")
{
    auto const kind = GENERATE(gpurx::transport::automatic, gpurx::transport::devmem, gpurx::transport::copy);
    CAPTURE(to_string(kind));
    // The second is longer than a name can be.
    auto const* const name = GENERATE("gpurx-no-such", "gpurx-no-such-and-longer");
    error_code code;
    gpurx::diagnostics why;
    CHECK_FALSE(rx_session::open({.interface = name, .transport = kind}, device_memory::on_host(mebibyte), code, why)
                    .has_value());
    CHECK(code == boost::system::errc::no_such_device);
    CHECK(why.operation == "find interface");
    CHECK(why.object == name);
    CHECK_THAT(why.advice, StartsWith("there are these in this network namespace: ") && ContainsSubstring("lo"));
    std::vector<device_memory> two;
    for (int i = 0; i < 2; ++i)
        two.push_back(device_memory::on_host(mebibyte));
    CHECK_THROWS_AS(rx_session({.interface = name, .transport = kind}, std::move(two)), gpurx::system_error);
}

TEST_CASE("a transport that was named is never replaced")
{
    error_code code;
    gpurx::diagnostics why;
    CHECK_FALSE(
        rx_session::open({.transport = gpurx::transport::devmem}, device_memory::on_host(8 * mebibyte), code, why)
            .has_value());
    CHECK(code == gpurx::errc::transport_unavailable);
    CHECK_THAT(describe(code, why), ContainsSubstring("rx_session_options::interface"));
    CHECK_THROWS_AS(
        rx_session({.interface = "lo", .transport = gpurx::transport::devmem, .state_directory = "/nonexistent/gpurx"},
                   device_memory::on_host(8 * mebibyte)),
        gpurx::system_error);
}

TEST_CASE("options that cannot work are refused by name")
{
    error_code code;
    gpurx::diagnostics why;
    auto const refused = [&](gpurx::rx_session_options options, device_memory memory) {
        return !rx_session::open(std::move(options), std::move(memory), code, why).has_value();
    };
    CHECK(refused({}, {}));
    CHECK(code == boost::system::errc::invalid_argument);
    CHECK_THAT(why.advice, ContainsSubstring("memory"));
    CHECK(refused({.rx_queues = 0}, device_memory::on_host(mebibyte)));
    CHECK_THAT(why.advice, ContainsSubstring("rx_queues"));
    // Whatever the transport.
    for (auto const kind : {gpurx::transport::copy, gpurx::transport::automatic, gpurx::transport::devmem}) {
        auto const half_a_page = static_cast<std::uint32_t>(gpurx::detail::sys::page_size() / 2);
        for (std::uint32_t const page : {1U, half_a_page, 3000U, 5000U, 12288U, ~0U}) {
            CAPTURE(to_string(kind), page);
            CHECK(refused({.transport = kind, .rx_page_size = page}, device_memory::on_host(mebibyte)));
            CHECK_THAT(why.advice, ContainsSubstring("rx_page_size"));
        }
    }
    CHECK(refused({.max_flows = 0}, device_memory::on_host(mebibyte)));
    CHECK_THAT(why.advice, ContainsSubstring("max_flows"));
    CHECK(refused({.max_flows = 1'000'000}, device_memory::on_host(mebibyte)));
    CHECK(code == gpurx::errc::memory_too_small);

    CHECK(rx_session::open({}, device_memory::on_host(mebibyte), code, why).has_value());
    CHECK_FALSE(code.failed());
    CHECK(why == gpurx::diagnostics{});
}

TEST_CASE("a session on a NIC shares its memory out and is found by its binding")
{
    auto const log = std::make_shared<nic_log>();
    auto session = devmem_session({.max_flows = 4}, log, 4711);
    CHECK(session->transport() == gpurx::transport::devmem);
    CHECK(session->queues() == std::vector{6U, 7U});
    CHECK(session->receive_buffer_size() == 512 * 1024);
    CHECK(session->loan_limit() == mebibyte / 2);
    CHECK(session->read_share() == mebibyte / 2);
    CHECK_THAT(session->explain(),
               StartsWith("explained\npages: 2048 of 4 KiB: 2048 free, 0 in the NIC's ring (whose size is not known)"));
    CHECK(session_state::find_binding(4711) == session);
    CHECK(session_state::find_binding(4712) == nullptr);

    auto const handle = session_access::handle(session);
    CHECK(handle.transport() == gpurx::transport::devmem);
    CHECK(handle.receive_buffer_size() == 512 * 1024);
    session.reset();
    CHECK(session_state::find_binding(4711) != nullptr);
}

TEST_CASE("the NIC is given back when the last user goes, whoever that is")
{
    auto const log = std::make_shared<nic_log>();
    auto session = devmem_session({}, log);
    error_code code;
    auto flow = session->admit(code);
    REQUIRE(flow != nullptr);
    auto const worker = session->worker();
    session.reset();
    CHECK(log->alive);
    CHECK(session_state::find_binding(77) != nullptr);
    flow.reset();
    CHECK(session_state::find_binding(77) == nullptr);
    worker->wait_if_finishing();
    CHECK_FALSE(log->alive);
}

TEST_CASE("a process that ends waits until its NIC is restored")
{
    static auto const log = std::make_shared<nic_log>();
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    std::cout.flush();
    auto const pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        ::alarm(60);
        log->at_end = [&ends] {
            std::this_thread::sleep_for(50ms);
            static_cast<void>(!::write(ends[1], "x", 1));
        };
        auto session = devmem_session({}, log);
        error_code code;
        auto flow = session->admit(code);
        session.reset();
        log->hold();
        flow.reset();
        static_cast<void>(std::atexit([] { log->let_go(); }));
        std::exit(0);
    }
    ::close(ends[1]);
    char byte = 0;
    CHECK(::read(ends[0], &byte, 1) == 1);
    ::close(ends[0]);
    int status = -1;
    CHECK(::waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
}

TEST_CASE("too little memory for a NIC's pages is refused")
{
    auto const memory = session_access::state(device_memory::on_host(8 * mebibyte));
    auto const log = std::make_shared<nic_log>();
    CHECK_THROWS_AS(session_state::create({}, memory, std::make_unique<fake_nic>(log, 1, 65536), {}),
                    gpurx::system_error);
    CHECK_FALSE(log->alive);
}

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

TEST_CASE("a flow has a rule of its own while it lives")
{
    auto const log = std::make_shared<nic_log>();
    auto const session = devmem_session({}, log);
    tcp::endpoint const local{asio::ip::make_address("10.77.0.1"), 4000};
    tcp::endpoint const remote{asio::ip::make_address("10.77.0.2"), 5000};
    error_code code;
    auto const steer = [&] {
        auto asked = session->steer_flow(STDOUT_FILENO, local, remote, code);
        REQUIRE_FALSE(code.failed());
        settle(*session);
        REQUIRE(asked->done);
        return asked;
    };
    auto flow = session->admit(code);
    flow->keep(std::move(steer()->rule));
    CHECK(log->flows == std::vector{std::pair{local, remote}});
    CHECK(log->rules == 1);
    flow.reset();
    settle(*session);
    CHECK(log->rules == 0);

    log->refusal = make_error_code(boost::system::errc::no_space_on_device);
    auto const refused = steer();
    CHECK(refused->rule == nullptr);
    CHECK(refused->code == boost::system::errc::no_space_on_device);
    CHECK(refused->why.kernel_message == "no room");
}

TEST_CASE("a rule that nobody waits for any more is not made, or removed again")
{
    auto const log = std::make_shared<nic_log>();
    auto const session = devmem_session({}, log);
    error_code code;
    log->hold();
    auto first = session->steer_flow(STDOUT_FILENO, {}, {}, code);
    auto second = session->steer_flow(STDOUT_FILENO, {}, {}, code);
    log->wait_until_busy();
    first.reset();
    second.reset();
    log->let_go();
    settle(*session);
    CHECK(log->flows.size() == 1);
    settle(*session);
    CHECK(log->rules == 0);
}

TEST_CASE("who drops the last of a session does not wait for the NIC, unless it is the handle")
{
    auto const log = std::make_shared<nic_log>();
    auto session = devmem_session({}, log);
    auto const worker = session->worker();
    error_code code;
    auto flow = session->admit(code);
    SECTION("a flow, as of a loan")
    {
        session.reset();
        log->hold();
        flow.reset();
        CHECK(log->alive);
        log->let_go();
        worker->wait_if_finishing();
    }
    SECTION("the handle")
    {
        std::optional handle{session_access::handle(std::move(session))};
        flow.reset();
        log->hold();
        std::jthread const other{[&] {
            log->wait_until_busy();
            log->let_go();
        }};
        handle.reset();
    }
    SECTION("the handle that another one is assigned to")
    {
        auto handle = session_access::handle(std::move(session));
        flow.reset();
        handle = session_access::handle(devmem_session({}, std::make_shared<nic_log>()));
    }
    SECTION("the NIC's thread")
    {
        flow.reset();
        worker->run([&] { session.reset(); });
        worker->wait_if_finishing();
    }
    CHECK_FALSE(log->alive);
}

TEST_CASE("the rules of listeners go before the NIC is given back")
{
    auto const log = std::make_shared<nic_log>();
    asio::io_context context;
    {
        auto session = session_access::handle(devmem_session({}, log));
        tcp::acceptor acceptor{context, {asio::ip::address_v4::loopback(), 0}};
        session.steer(acceptor);
        CHECK(log->listeners == 1);
    }
    CHECK_FALSE(log->alive);
    CHECK(log->outlived == 0);
    CHECK(log->listeners == 0);
}

TEST_CASE("an acceptor is steered once bound, and its connections inherit their share of the memory")
{
    auto const log = std::make_shared<nic_log>();
    auto session = session_access::handle(devmem_session({.max_flows = 32}, log));
    asio::io_context context;
    tcp::acceptor acceptor{context};
    error_code code;
    gpurx::diagnostics why;

    session.steer(acceptor, code, why);
    CHECK(code.failed());
    acceptor.open(tcp::v4());
    session.steer(acceptor, code, why);
    CHECK(code == boost::system::errc::invalid_argument);
    CHECK_THROWS_AS(session.steer(acceptor), gpurx::system_error);
    CHECK(log->ports.empty());

    acceptor.bind({asio::ip::address_v4::loopback(), 0});
    session.steer(acceptor, code, why);
    CHECK_FALSE(code.failed());
    CHECK(log->ports == std::vector{std::pair{acceptor.local_endpoint(), false}});
    CHECK(receive_buffer_of(acceptor.native_handle()) == session.receive_buffer_size());

    acceptor.listen();
    tcp::socket sender{context};
    sender.connect(acceptor.local_endpoint());
    CHECK(receive_buffer_of(acceptor.accept().native_handle()) == session.receive_buffer_size());

    log->refusal = make_error_code(boost::system::errc::no_space_on_device);
    CHECK_THROWS_AS(session.steer(acceptor), gpurx::system_error);
}

TEST_CASE("a v6 acceptor that takes IPv4 as well is steered for both")
{
    auto const log = std::make_shared<nic_log>();
    auto session = session_access::handle(devmem_session({}, log));
    asio::io_context context;
    for (bool const only_v6 : {true, false}) {
        tcp::acceptor acceptor{context};
        acceptor.open(tcp::v6());
        acceptor.set_option(asio::ip::v6_only{only_v6});
        acceptor.bind({tcp::v6(), 0});
        session.steer(acceptor);
        CHECK(log->ports.back() == std::pair{acceptor.local_endpoint(), !only_v6});
    }
    tcp::acceptor acceptor{context, {asio::ip::address_v6::loopback(), 0}};
    session.steer(acceptor);
    CHECK(log->ports.back() == std::pair{acceptor.local_endpoint(), false});
}

TEST_CASE("receive memory that was asked for is given with transport copy too")
{
    rx_session session{{.max_flows = 8, .receive_memory = mebibyte}, device_memory::on_host(mebibyte)};
    CHECK(session.receive_buffer_size() == 64 * 1024);
    asio::io_context context;
    tcp::acceptor acceptor{context, {asio::ip::address_v4::loopback(), 0}};
    session.steer(acceptor);
    CHECK(receive_buffer_of(acceptor.native_handle()) == 64 * 1024);
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

TEST_CASE("how long the pool was dry is counted by the watchdog")
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

TEST_CASE("a session whose NIC keeps most of the memory posted is refused")
{
    auto const log = std::make_shared<nic_log>();
    log->ring = {1024, 9000};  // of two queues: 32 MiB
    try {
        devmem_session({.interface = "fake0", .lock_up_limit = 0ms}, log);
        FAIL("a session without memory for its flows");
    } catch (gpurx::system_error const& failure) {
        CHECK(failure.code() == gpurx::errc::memory_too_small);
        CHECK_THAT(failure.what(),
                   ContainsSubstring("the 2 rings of fake0 keep at least 32 MiB of it posted (1024 frames "
                                     "of 16 KiB each)") &&
                       ContainsSubstring("give a memory of 36 MiB") && ContainsSubstring("ethtool -G fake0 rx 128"));
    }
    CHECK_FALSE(log->alive);
    log->ring = {128, 1500};
    auto const session = devmem_session({.lock_up_limit = 0ms}, log);
    // A quarter of what 1 MiB of 8 MiB leaves, and 16 flows.
    CHECK(session->pool()->ring_demand == 256U);
    CHECK(session->receive_buffer_size() == 7 * 1024 * 1024 / 2 / 16 / 2);
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

TEST_CASE("flows that wait in vain for pages say so, and who holds them")
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
    CHECK_THAT(session->explain(), ContainsSubstring("\nstarved: no page is free for what arrives; " + holders));
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
                   StartsWith("fake0: no page is free for what arrives; waiting: " + name(2) + "; " + holders));
    }
    for (auto const& flow : flows) {
        flow->set_waiting(flow_wait::nothing);
        flow->set_socket(-1);
    }
}

TEST_CASE("without a thread for the watchdog a session is refused by an error code, and the NIC is as it was")
{
    // A stack that no address space holds.
    pthread_attr_t before;
    pthread_attr_t impossible;
    REQUIRE(::pthread_getattr_default_np(&before) == 0);
    REQUIRE(::pthread_attr_init(&impossible) == 0);
    REQUIRE(::pthread_attr_setstacksize(&impossible, std::size_t{1} << 62) == 0);
    REQUIRE(::pthread_setattr_default_np(&impossible) == 0);
    auto const log = std::make_shared<nic_log>();
    error_code code;
    gpurx::diagnostics why;
    try {
        devmem_session({.lock_up_limit = 100ms}, log);
        FAIL("a session without a watchdog");
    } catch (gpurx::system_error const& failure) {
        code = failure.code();
        why = failure.why();
    }
    ::pthread_setattr_default_np(&before);
    ::pthread_attr_destroy(&impossible);
    CHECK(code == boost::system::errc::resource_unavailable_try_again);
    CHECK_THAT(describe(code, why), StartsWith("start thread gpurx-watchdog"));
    CHECK_FALSE(log->alive);
}
