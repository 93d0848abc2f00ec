// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "base/byte_size.hpp"
#include "devmem_session.hpp"
#include "session/session_state.hpp"

using gpurx::device_memory;
using gpurx::error_code;
using gpurx::rx_session;
using gpurx::detail::mebibyte;
using gpurx::detail::session_access;
using gpurx::test::devmem_session;
using gpurx::test::nic_log;
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

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

TEST_CASE("a rule without a waiting flow is not made, or removed again")
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
