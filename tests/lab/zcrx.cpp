// SPDX-License-Identifier: Apache-2.0
//
// What the real io_uring does of which tests/asio/zcrx.cpp has only a fake.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <string>
#include <thread>

#include "base/zcrx_queue.hpp"
#include "bed.hpp"
#include "nic.hpp"
#include "rights.hpp"

namespace gpurx::lab {

namespace {

using Catch::Matchers::ContainsSubstring;

rx_session_options over_zcrx()
{
    return {.interface = near_interface, .transport = transport::zcrx, .max_flows = 2};
}

error_code receive_from(tcp::acceptor& acceptor, asio::io_context& io, rx_session& session, std::uint64_t seed)
{
    peer_sender const sender{acceptor.local_endpoint(), {seed, mebibyte}};
    outcome result;
    asio::co_spawn(io, consume({io, session, acceptor.accept()}, way::loan, result), rethrow);
    io.restart();
    io.run();
    return result.error;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "two sessions over io_uring never share memory, and share the NIC", "[smoke][zcrx]")
{
    auto const memory = device_memory::on_host(16 * mebibyte);
    rx_session const first{over_zcrx(), memory};
    error_code code;
    diagnostics why;
    for (auto const kind : {transport::zcrx, transport::devmem, transport::copy, transport::automatic}) {
        auto options = over_zcrx();
        options.transport = kind;
        options.allow_zcrx = true;
        CHECK_FALSE(rx_session::open(options, memory, code, why));
        CHECK(code == error_code(EBUSY, boost::system::system_category()));
        CHECK_THAT(describe(code, why), ContainsSubstring("give each session a memory of its own"));
    }
    rx_session const second{over_zcrx(), device_memory::on_host(16 * mebibyte)};
    CHECK(first.transport() == transport::zcrx);
    CHECK(second.transport() == transport::zcrx);
}

TEST_CASE_METHOD(unchanged_nic, "a queue of io_uring is free as soon as its session has ended", "[smoke][zcrx]")
{
    auto const memory = device_memory::on_host(16 * mebibyte);
    for (int i = 0; i < 10; ++i) {
        rx_session const session{over_zcrx(), memory};
        CHECK(session.transport() == transport::zcrx);
    }
}

TEST_CASE_METHOD(unchanged_nic, "the first receive of a thread needs CAP_NET_ADMIN, and later ones do not",
                 "[smoke][zcrx]")
{
    rx_session session{over_zcrx(), device_memory::on_host(16 * mebibyte)};
    asio::io_context io{1};
    auto acceptor = listen_on(session, io.get_executor(), family::v4);
    CHECK(receive_from(acceptor, io, session, 1) == asio::error::eof);
    {
        without_net_admin const rights;
        CHECK(receive_from(acceptor, io, session, 2) == asio::error::eof);
    }
    std::thread{[&] {
        {
            without_net_admin const rights;
            CHECK(receive_from(acceptor, io, session, 3) == error_code(EPERM, boost::system::system_category()));
        }
        CHECK(receive_from(acceptor, io, session, 4) == asio::error::eof);
    }}.join();
}

}  // namespace gpurx::lab
