// SPDX-License-Identifier: Apache-2.0
//
// Loans that outlive everything else: receiver, session handle and io_context, while another flow of the session fills
// the rest of the same memory over and over.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/syscalls.hpp"
#include "bed.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
namespace asio = boost::asio;

namespace {

// Takes loans until they have so many bytes, then leaves the receiver to its end.
asio::awaitable<void> borrow(gpurx::receiver rx, std::size_t bytes, std::uint64_t& seed,
                             std::vector<gpurx::rx_buffer>& loans)
{
    co_await gpurx::async_read(rx, gpurx::host_span(seed), token);
    for (std::size_t held = 0; held < bytes;) {
        auto [error, loan] = co_await rx.async_receive(token);
        if (error)
            co_return;
        held += loan.size();
        loans.push_back(std::move(loan));
    }
}

std::uint64_t wrong_pieces(std::vector<gpurx::rx_buffer> const& loans, std::uint64_t seed)
{
    pattern_check check{seed};
    check_loans(check, loans);
    return check.wrong_pieces();
}

// Bytes that wait in a socket.
int queued(int socket)
{
    int bytes = -1;
    ::ioctl(socket, SIOCINQ, &bytes);
    return bytes;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "loans stay intact after receiver, session and io_context are gone", "[outlive]")
{
    constexpr std::size_t held_bytes = 2 * mebibyte;
    constexpr std::uint64_t other_bytes = 48 * mebibyte;
    std::vector<gpurx::rx_buffer> loans;
    std::uint64_t seed = 0;
    outcome other;
    {
        std::optional<gpurx::rx_session> session{
            open_session(8 * mebibyte, {.max_flows = 2, .loan_limit = 3 * mebibyte})};
        auto first_context = std::make_unique<asio::io_context>(1);
        asio::io_context second_context{1};
        auto acceptor = std::make_unique<tcp::acceptor>(listen_on(*session, first_context->get_executor(), family::v4));

        // The borrower is cut off in the middle of its stream.
        peer_sender first{acceptor->local_endpoint(), {21, 64 * mebibyte}};
        gpurx::receiver borrower{*first_context, *session, acceptor->accept()};
        gpurx::detail::unique_fd const borrowers_socket{::dup(borrower.native_handle())};
        asio::co_spawn(*first_context, borrow(std::move(borrower), held_bytes, seed, loans), rethrow);
        first_context->run();
        REQUIRE(!loans.empty());
        CHECK(queued(borrowers_socket.get()) == 0);  // or their pages would be missing to the other flow

        peer_sender second{acceptor->local_endpoint(), {22, other_bytes}};
        gpurx::receiver reader{second_context, *session, acceptor->accept(second_context)};
        asio::co_spawn(second_context, consume(std::move(reader), way::read, other), rethrow);
        acceptor.reset();
        session.reset();
        first_context.reset();
        CHECK(wrong_pieces(loans, seed) == 0);
        second_context.run();
        CHECK(first.error().has_value());
    }
    INFO(other);
    CHECK(intact(other, other_bytes));
    CHECK(seed == 21);
    CHECK(wrong_pieces(loans, seed) == 0);
    // The session is still there: its settings are, and the pages that are on loan.
    CHECK(nic_settings() != settings_before());
    CHECK(pools_now().in_flight >= held_bytes / 4096);

    // From any thread, in any order. The last one undoes the session.
    std::thread elsewhere{
        [half = std::vector<gpurx::rx_buffer>(
             std::make_move_iterator(loans.begin()),
             std::make_move_iterator(loans.begin() + static_cast<std::ptrdiff_t>(loans.size() / 2)))] {}};
    loans.clear();
    elsewhere.join();
}
