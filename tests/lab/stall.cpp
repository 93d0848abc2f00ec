// SPDX-License-Identifier: Apache-2.0
//
// Two consumers of one memory, of which one holds on to what it got for five seconds.
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bed.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using clock_type = std::chrono::steady_clock;
namespace asio = boost::asio;

namespace {

constexpr std::uint64_t stream_bytes = 16 * mebibyte;
// With fewer free pages than that there is none for the next packet (watchdog.hpp).
constexpr std::uint64_t pages_of_a_segment = 17;

// Takes loans and keeps them, until released; then consumes on.
class hoarder {
  public:
    asio::awaitable<void> run(gpurx::receiver rx, outcome& result)
    {
        co_await gpurx::async_read(rx, gpurx::host_span(result.what.seed), token);
        check_ = pattern_check{result.what.seed};
        for (;;) {
            auto [error, loan] = co_await rx.async_receive(token);
            result.error = error;
            if (error)
                break;
            held_bytes_ += loan.size();
            held_.push_back(std::move(loan));
            if (released_)
                drain();
        }
        result.bytes = check_.position();
        result.wrong_pieces = check_.wrong_pieces();
        result.first_wrong = check_.first_wrong();
        result.stats = rx.stats();
    }

    // Reads what was held all the time, and gives it back.
    void release()
    {
        released_ = true;
        drain();
    }
    [[nodiscard]] std::uint64_t held_bytes() const noexcept { return held_bytes_; }

  private:
    void drain()
    {
        check_loans(check_, held_);
        held_.clear();
    }

    pattern_check check_{0};
    std::vector<gpurx::rx_buffer> held_;
    std::uint64_t held_bytes_ = 0;
    bool released_ = false;
};

struct course {
    outcome hoarded;
    outcome ordinary;
    std::uint64_t held = 0;                   // bytes, when the stall ended
    std::uint64_t ordinary_at_stall_end = 0;  // bytes
    std::uint64_t ordinary_before = 0;        // bytes, one second earlier
    std::uint64_t failures = 0;               // allocations, during the stall
    gpurx::pool_stats pool;                   // when the stall ended
    std::string explained;
};

// The stall lasts five seconds, and while `goes_on` says so.
course run_course(gpurx::rx_session_options options,
                  std::function<bool(outcome const&, gpurx::pool_stats const&)> const& goes_on)
{
    auto session = open_session(4 * mebibyte, std::move(options));
    asio::io_context context{1};
    auto acceptor = listen_on(session, context.get_executor(), family::v4);
    course result;
    hoarder keeps;
    bool finished = false;
    auto const failures = allocation_failures();

    peer_sender first{acceptor.local_endpoint(), {11, stream_bytes}};
    asio::co_spawn(
        context,
        [&]() -> asio::awaitable<void> {
            asio::steady_timer timer{context};
            gpurx::receiver slow{context, session, co_await acceptor.async_accept(asio::use_awaitable)};
            asio::co_spawn(context, keeps.run(std::move(slow), result.hoarded), rethrow);
            timer.expires_after(1s);
            co_await timer.async_wait(asio::use_awaitable);

            peer_sender second{acceptor.local_endpoint(), {12, stream_bytes}};
            gpurx::receiver fast{context, session, co_await acceptor.async_accept(asio::use_awaitable)};
            asio::co_spawn(context, consume(std::move(fast), way::read, result.ordinary),
                           [&](std::exception_ptr failure) {
                               finished = true;
                               rethrow(failure);
                           });
            auto const end = clock_type::now() + 5s;
            while (clock_type::now() < end ||
                   (goes_on(result.ordinary, session.pool_stats().value()) && clock_type::now() < end + 60s)) {
                result.ordinary_before = finished ? stream_bytes : second.sent();
                timer.expires_after(1s);
                co_await timer.async_wait(asio::use_awaitable);
            }
            result.ordinary_at_stall_end = finished ? stream_bytes : second.sent();
            result.held = keeps.held_bytes();
            result.failures = allocation_failures() - failures;
            result.pool = session.pool_stats().value();
            result.explained = session.explain();
            keeps.release();
            while (!finished) {
                timer.expires_after(20ms);
                co_await timer.async_wait(asio::use_awaitable);
            }
        },
        rethrow);
    context.run();
    return result;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "a consumer without a loan limit takes all the memory; later both finish whole",
                 "[stall]")
{
    auto const course = run_course({.max_flows = 2, .receive_memory = mebibyte, .loan_limit = 64 * mebibyte},
                                   [](outcome const&, auto const& pool) { return pool.dry_time == 0s; });
    INFO(course.hoarded << '\n' << course.ordinary << '\n' << course.explained);
    CHECK(intact(course.hoarded, stream_bytes));
    CHECK(intact(course.ordinary, stream_bytes));
    // The memory was exhausted: nearly all of it on loan, packets found no page, and the other flow stood still.
    CHECK(course.held > 3 * mebibyte);
    CHECK(course.failures > 0);
    CHECK(course.ordinary_at_stall_end < stream_bytes);
    CHECK(course.ordinary_at_stall_end == course.ordinary_before);
    // And the session says all of that.
    fmt::print("{}\n", course.explained);
    auto const& pool = course.pool;
    CHECK(pool.dry_time.value() > 0s);
    CHECK(pool.allocation_failures.value() > 0);
    CHECK(pool.overruns.value() > 0);
    CHECK(pool.high_water + pages_of_a_segment > pool.pages);
    CHECK(pool.high_water <= pool.pages);
    CHECK(pool.on_loan > 3 * mebibyte / pool.page_size);
    CHECK_THAT(course.explained, ContainsSubstring("; dry for ") && !ContainsSubstring("; dry for 0.0 s"));
}

TEST_CASE_METHOD(unchanged_nic, "the loan limit keeps a stalled consumer from starving the other", "[smoke][stall]")
{
    auto const course = run_course({.max_flows = 2, .receive_memory = 2 * mebibyte, .loan_limit = mebibyte},
                                   [](outcome const& ordinary, auto const&) { return ordinary.bytes == 0; });
    INFO(course.hoarded << '\n' << course.ordinary);
    CHECK(intact(course.hoarded, stream_bytes));
    CHECK(intact(course.ordinary, stream_bytes));
    // It was at its limit (a loan is whole segments), and the other flow finished meanwhile.
    CHECK(course.held <= mebibyte);
    CHECK(course.held > mebibyte / 2);
    CHECK(course.hoarded.stats.loan_waits > 0);
    CHECK(course.ordinary_at_stall_end == stream_bytes);
}
