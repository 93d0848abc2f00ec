// SPDX-License-Identifier: Apache-2.0
//
// fork() while a flow runs: a child drops its copies, another one outlives the session. Neither is noticed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "bed.hpp"
#include "child.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
namespace asio = boost::asio;

namespace {

// A child with copies of everything that keeps them for as long as this object lives.
class idle_child {
  public:
    idle_child() : pid_{::fork()}
    {
        REQUIRE(pid_ >= 0);
        while (pid_ == 0)
            ::pause();
    }
    idle_child(idle_child const&) = delete;
    idle_child& operator=(idle_child const&) = delete;
    ~idle_child()
    {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }

  private:
    pid_t pid_;
};

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "children that are forked while a flow runs change nothing", "[fork]")
{
    constexpr std::uint64_t bytes = 24 * mebibyte;
    std::optional<gpurx::rx_session> session{open_session(8 * mebibyte, {.max_flows = 2})};
    asio::io_context io{1};
    auto acceptor = std::make_unique<tcp::acceptor>(listen_on(*session, io.get_executor(), family::v4));
    peer_sender sender{acceptor->local_endpoint(), {31, bytes}, bytes / 2};
    std::optional<gpurx::receiver> rx{std::in_place, io, *session, acceptor->accept()};

    // A loan in hand, more bytes in the socket, and a watchdog that runs.
    std::vector<gpurx::rx_buffer> loans;
    std::uint64_t seed = 0;
    auto const borrow = [&]() -> asio::awaitable<void> {
        co_await gpurx::async_read(*rx, gpurx::host_span(seed), token);
        auto [error, loan] = co_await rx->async_receive(token);
        REQUIRE_FALSE(error);
        loans.push_back(std::move(loan));
    };
    asio::co_spawn(io, borrow(), rethrow);
    io.run();

    std::optional<idle_child> idle{std::in_place};
    auto const found = gpurx::test::in_child([&](gpurx::test::child_report& child) {
        loans.clear();
        rx->close();
        rx.reset();
        session.reset();
        child.expect(gpurx::rx_session::recover(near_interface).empty(), "there is nothing to recover");
    });
    CHECK(found == "");

    pattern_check check{seed};
    check_loans(check, loans);
    loans.clear();
    sender.resume();
    auto const take_all = [&]() -> asio::awaitable<void> {
        // Not to the end of the stream: the idle child has the sender's end open, too.
        while (check.position() < bytes) {
            auto [error, loan] = co_await rx->async_receive(token);
            REQUIRE_FALSE(error);
            check_loan(check, loan);
        }
    };
    asio::co_spawn(io, take_all(), rethrow);
    io.restart();
    io.run();
    CHECK(check.wrong_pieces() == 0);
    CHECK(check.position() == bytes);
    CHECK(session->stats().host_bytes == 0);
    rx.reset();
    session.reset();
    acceptor.reset();
    // The idle child lives; the memory is unbound all the same.
    CHECK(nic_settings() == settings_before());
}
