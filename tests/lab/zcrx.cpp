// SPDX-License-Identifier: Apache-2.0
//
// What the real io_uring does of which tests/asio/zcrx.cpp has only a fake.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <latch>
#include <list>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "../bench/rfc/drain.h"
#include "base/zcrx_queue.hpp"
#include "bed.hpp"
#include "memory/memory_state.hpp"
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

// Receives a stream to its end, and notes which of `count` equal parts of the memory it landed in.
asio::awaitable<void> note_parts(receiver rx, memory_span all, std::size_t count, std::set<std::size_t>& parts)
{
    for (;;) {
        auto const [error, loan] = co_await rx.async_receive(asio::as_tuple(asio::use_awaitable));
        if (error)
            co_return;
        for (auto const& piece : loan.fragments())
            parts.insert((piece.address - all.address()) / (all.size() / count));
    }
}

asio::awaitable<void> connect_and_note_parts(rx_session& session, tcp::endpoint there, std::size_t count,
                                             std::set<std::size_t>& parts)
{
    receiver rx{co_await asio::this_coro::executor, session};
    co_await rx.async_connect(there);
    co_await note_parts(std::move(rx), session.memory().span(), count, parts);
}

// Another program's queue: the plain C loop of `./run bench rfc`, and a rule for its listener.
class plain_loop {
  public:
    explicit plain_loop(unsigned queue)
    {
        zcrx_queue const where{near_interface, queue, memory_->dmabuf_fd(), memory_->span().size()};
        if (zcrx_open(&loop_, &where) != 0)
            throw std::system_error{errno, std::system_category(), "zcrx_open"};
        detail::flow_rule rule{};
        rule.match.local_port = acceptor_.local_endpoint().port();
        rule.target = queue;
        rule_ = nic_.add_rule(rule);
    }
    plain_loop(plain_loop const&) = delete;
    plain_loop& operator=(plain_loop const&) = delete;
    ~plain_loop()
    {
        nic_.remove_rule(rule_);
        zcrx_close(&loop_);
    }

    // Whether all of a stream arrives in the memory.
    [[nodiscard]] bool receives(std::uint64_t bytes)
    {
        peer_sender const sender{acceptor_.local_endpoint(), {7, bytes}};
        auto socket = acceptor_.accept();
        int const one = socket.native_handle();
        return zcrx_run(&loop_, &one, 1, bytes + sizeof(std::uint64_t)) == 0;
    }

  private:
    std::shared_ptr<detail::memory_state> memory_ = detail::make_host_memory(8 * mebibyte);
    asio::io_context io_;
    tcp::acceptor acceptor_{io_, {near_address(family::v4), 0}};
    detail::kernel_nic nic_{near_interface};
    std::uint32_t rule_ = 0;
    zcrx_loop loop_{};
};

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "several queues have a part of the memory each, and a flow lands in that of its queue",
                 "[smoke][zcrx]")
{
    constexpr std::size_t flows = 12;
    constexpr unsigned queues = 3;
    auto options = over_zcrx();
    options.rx_queues = queues;
    options.max_flows = flows;
    rx_session session{options, device_memory::on_host(48 * mebibyte)};
    CHECK(session.queues().size() == queues);
    CHECK_THAT(session.explain(), ContainsSubstring("each into a part of it"));
    asio::io_context io{1};
    auto acceptor = listen_on(session, io.get_executor(), family::v4);
    std::list<peer_sender> senders;
    std::array<std::set<std::size_t>, flows> parts;
    // An RSS context spreads the connections to a port by hash, and those from here take turns.
    for (std::size_t i = 0; i < flows; ++i) {
        if (i < flows / 2) {
            senders.emplace_back(acceptor.local_endpoint(), stream{1, mebibyte});
            asio::co_spawn(io, note_parts({io, session, acceptor.accept()}, session.memory().span(), queues, parts[i]),
                           rethrow);
        } else {
            auto const& sender = senders.emplace_back(family::v4, stream{1, mebibyte});
            asio::co_spawn(io, connect_and_note_parts(session, sender.endpoint(), queues, parts[i]), rethrow);
        }
    }
    io.run();
    std::set<std::size_t> all;
    for (auto& of_flow : parts) {
        CHECK(of_flow.size() == 1);
        all.merge(of_flow);
    }
    CHECK(all == std::set<std::size_t>{0, 1, 2});
    CHECK(session.stats().device_bytes == flows * (mebibyte + 8));
    CHECK(session.stats().tokens_out == 0);
    CHECK(session.pool_stats()->on_loan == 0);
}

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

TEST_CASE_METHOD(unchanged_nic,
                 "a session and another program's loop of io_uring share the NIC, and neither disturbs the other",
                 "[smoke][zcrx]")
{
    constexpr std::uint64_t size = 16 * mebibyte;
    auto session = std::make_unique<rx_session>(over_zcrx(), device_memory::on_host(8 * mebibyte));
    auto const next = session->queues().front() - 1;
    std::latch open{1};
    std::latch alone{1};
    bool beside = false;
    bool after = false;
    std::thread other{[&] {
        plain_loop loop{next};
        open.count_down();
        beside = loop.receives(size);
        alone.wait();
        after = loop.receives(size);
    }};
    open.wait();
    auto const outcomes = transfer(*session, {{5, size}, {6, size}}, family::v4, way::loan, role::accepts);
    for (auto const& result : outcomes) {
        INFO(result);
        CHECK(intact(result, size));
        CHECK(result.stats.device_bytes == size + 8);
    }
    session.reset();
    alone.count_down();
    other.join();
    CHECK(beside);
    CHECK(after);
    CHECK(pools_vanish());
    INFO(fmt::format("recovered: {}", fmt::join(rx_session::recover(near_interface), "; ")));
    CHECK(nic_settings() == settings_before());
}

TEST_CASE_METHOD(unchanged_nic, "a queue of io_uring is free as soon as its session has ended", "[smoke][zcrx]")
{
    auto const memory = device_memory::on_host(16 * mebibyte);
    for (int i = 0; i < 10; ++i) {
        rx_session const session{over_zcrx(), memory};
        CHECK(session.transport() == transport::zcrx);
    }
}

TEST_CASE_METHOD(unchanged_nic, "a thread without CAP_NET_ADMIN receives with a spare ring, and the next has none",
                 "[smoke][zcrx]")
{
    auto options = over_zcrx();
    options.zcrx_spare_rings = 1;
    rx_session session{options, device_memory::on_host(16 * mebibyte)};
    asio::io_context io{1};
    auto acceptor = listen_on(session, io.get_executor(), family::v4);
    auto const receive_without_rights = [&](std::uint64_t seed) {
        error_code code;
        std::thread{[&] {
            without_net_admin const rights;
            code = receive_from(acceptor, io, session, seed);
        }}.join();
        return code;
    };
    CHECK(receive_without_rights(1) == asio::error::eof);
    CHECK(receive_without_rights(2) == error_code(EPERM, boost::system::system_category()));
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
