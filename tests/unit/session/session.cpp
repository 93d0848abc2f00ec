// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <gpurx/metrics.hpp>
#include <gpurx/session.hpp>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/byte_size.hpp"
#include "base/syscalls.hpp"
#include "devmem_session.hpp"
#include "fake_nic.hpp"
#include "session/session_state.hpp"

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using gpurx::device_memory;
using gpurx::error_code;
using gpurx::rx_session;
using gpurx::detail::mebibyte;
using gpurx::detail::session_access;
using gpurx::detail::session_state;
using gpurx::test::devmem_session;
using gpurx::test::fake_nic;
using gpurx::test::nic_log;
using namespace std::chrono_literals;

TEST_CASE("transport copy works without an interface, and explain() names it")
{
    rx_session const session{{.transport = gpurx::transport::copy}, device_memory::on_host(mebibyte)};
    CHECK(session.transport() == gpurx::transport::copy);
    CHECK_THAT(session.explain(),
               StartsWith("copy: in use") && ContainsSubstring("devmem: not in use: transport copy was requested"));
    CHECK_THAT(session.explain(), ContainsSubstring("\nzcrx: not in use: transport copy was requested"));
    CHECK(session.why_not_devmem() == gpurx::transport_obstacle::not_asked_for);
    CHECK(session.why_not_zcrx() == gpurx::transport_obstacle::not_asked_for);
    CHECK(session.queues().empty());
    CHECK(session.receive_buffer_size() == 0);
    CHECK(session.memory().size() >= mebibyte);
    CHECK(session.stats() == gpurx::stats{});
}

TEST_CASE("automatic falls back to copy, and explain() has the reason and advice")
{
    SECTION("no interface")
    {
        rx_session const session{{}, device_memory::on_host(8 * mebibyte)};
        CHECK(session.transport() == gpurx::transport::copy);
        CHECK_THAT(session.explain(), StartsWith("copy: in use") && ContainsSubstring("\ndevmem: not in use: ") &&
                                          ContainsSubstring("rx_session_options::interface"));
        CHECK(session.why_not_devmem() == gpurx::transport_obstacle::no_interface);
        CHECK(gpurx::to_string(session.why_not_devmem()) == "no_interface");
        gpurx::named_session const named{"loader", session};
        CHECK_THAT(gpurx::metrics_text({&named, 1}),
                   ContainsSubstring("obstacle=\"no_interface\",zcrx_obstacle=\"not_allowed\""));
        CHECK_THAT(session.explain(), ContainsSubstring("\nzcrx: not in use: rx_session_options::allow_zcrx is false"));
    }
    SECTION("an interface that cannot do it, or memory that cannot be exported")
    {
        rx_session const session{{.interface = "lo", .state_directory = "/nonexistent/gpurx"},
                                 device_memory::on_host(8 * mebibyte)};
        CHECK(session.transport() == gpurx::transport::copy);
        CHECK_THAT(session.explain(), StartsWith("copy: in use") && ContainsSubstring("\ndevmem: not in use: "));
        CHECK_THAT(session.explain(), ContainsSubstring(session.memory().dmabuf_fd() < 0 ? "/dev/udmabuf" : "lo"));
        CHECK((session.why_not_devmem() == gpurx::transport_obstacle::memory_not_exported) ==
              (session.memory().dmabuf_fd() < 0));
    }
}

TEST_CASE("automatic tries zcrx only if it is allowed, and then falls back, too")
{
    auto const open = [](bool allowed) {
        return rx_session{{.interface = "lo", .allow_zcrx = allowed, .state_directory = "/nonexistent/gpurx"},
                          device_memory::on_host(8 * mebibyte)};
    };
    CHECK(open(false).why_not_zcrx() == gpurx::transport_obstacle::not_allowed);
    auto const session = open(true);
    CHECK(session.transport() == gpurx::transport::copy);
    CHECK(session.why_not_zcrx() != gpurx::transport_obstacle::not_allowed);
    CHECK(session.why_not_zcrx() != gpurx::transport_obstacle::none);
    CHECK(session.why_not_devmem() != gpurx::transport_obstacle::none);
    CHECK_THAT(session.explain(), StartsWith("copy: in use") && ContainsSubstring("\ndevmem: not in use: ") &&
                                      ContainsSubstring("\nzcrx: not in use: "));
}

TEST_CASE("an interface that is named and does not exist is an error, whatever was asked for")
{
    auto const kind =
        GENERATE(gpurx::transport::automatic, gpurx::transport::devmem, gpurx::transport::zcrx, gpurx::transport::copy);
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
    CHECK_THAT(why.advice, StartsWith("interfaces in this network namespace: ") && ContainsSubstring("lo"));
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
    for (auto const kind :
         {gpurx::transport::copy, gpurx::transport::automatic, gpurx::transport::devmem, gpurx::transport::zcrx}) {
        auto const half_a_page = static_cast<std::uint32_t>(gpurx::detail::sys::page_size() / 2);
        for (std::uint32_t const page : {1U, half_a_page, 3000U, 5000U, 12288U, ~0U}) {
            CAPTURE(to_string(kind), page);
            CHECK(refused({.transport = kind, .rx_page_size = page}, device_memory::on_host(mebibyte)));
            CHECK(code == boost::system::errc::invalid_argument);
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
    CHECK(handle.why_not_devmem() == gpurx::transport_obstacle::none);
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

TEST_CASE("only the handle of a session waits for the NIC when it is dropped last")
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
