// SPDX-License-Identifier: Apache-2.0
//
// Two consumers of one memory, of which one holds on to what it got until the other is through, or stands still.
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
namespace asio = boost::asio;

namespace {

constexpr std::uint64_t stream_bytes = 16 * mebibyte;
// With fewer free pages than that there is none for the next packet (pool_state.hpp).
constexpr std::uint64_t pages_of_a_segment = 17;

// Takes loans and keeps them, until released; then consumes on.
class hoarder {
  public:
    asio::awaitable<void> run(gpurx::receiver rx, outcome& result)
    {
        rx_ = &rx;
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
        rx_ = nullptr;
    }

    // Reads what was held all the time, and gives it back.
    void release()
    {
        released_ = true;
        drain();
    }
    [[nodiscard]] std::uint64_t held_bytes() const noexcept { return held_bytes_; }
    // Whether it has to wait until it gives something back.
    [[nodiscard]] bool waits() const { return rx_ != nullptr && rx_->stats().loan_waits > 0; }

  private:
    void drain()
    {
        check_loans(check_, held_);
        held_.clear();
    }

    gpurx::receiver const* rx_ = nullptr;
    pattern_check check_{0};
    std::vector<gpurx::rx_buffer> held_;
    std::uint64_t held_bytes_ = 0;
    bool released_ = false;
};

struct moment {
    bool is_through = false;     // the ordinary flow
    bool stands_still = false;   // its sender
    std::uint64_t sent = 0;      // bytes of it
    std::uint64_t failures = 0;  // allocations, since the start
    gpurx::pool_stats pool;
};

struct course {
    outcome hoarded;
    outcome ordinary;
    std::uint64_t held = 0;  // bytes, when the stall ended
    moment at_stall_end;
    std::string explained;
};

// The ordinary flow begins when the other `has_enough`. The stall ends when a moment `is_last`.
course run_course(gpurx::rx_session_options options, std::function<bool(hoarder const&)> const& has_enough,
                  std::function<bool(moment const&)> const& is_last)
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
            while (!has_enough(keeps)) {
                timer.expires_after(10ms);
                co_await timer.async_wait(asio::use_awaitable);
            }

            peer_sender second{acceptor.local_endpoint(), {12, stream_bytes}};
            gpurx::receiver fast{context, session, co_await acceptor.async_accept(asio::use_awaitable)};
            asio::co_spawn(context, consume(std::move(fast), way::read, result.ordinary),
                           [&](std::exception_ptr failure) {
                               finished = true;
                               rethrow(failure);
                           });
            auto const now = [&] {
                return moment{finished, second.stands_still(), second.sent(), allocation_failures() - failures,
                              session.pool_stats().value()};
            };
            while (!is_last(result.at_stall_end = now())) {
                timer.expires_after(20ms);
                co_await timer.async_wait(asio::use_awaitable);
            }
            result.held = keeps.held_bytes();
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
    // The other flow stands still, while packets have found no page some times in a row.
    moment since;
    auto const stands_still = [&](moment const& now) {
        if (!now.stands_still || now.sent != since.sent || now.pool.dry_time.value() < 100ms)
            since = now;
        return now.failures > since.failures + 1;
    };
    auto const course = run_course(
        {.max_flows = 2, .receive_memory = mebibyte, .loan_limit = 64 * mebibyte},
        [](hoarder const& keeps) { return keeps.held_bytes() > 3 * mebibyte; }, stands_still);
    INFO(course.hoarded << '\n' << course.ordinary << '\n' << course.explained);
    CHECK(intact(course.hoarded, stream_bytes));
    CHECK(intact(course.ordinary, stream_bytes));
    // The memory was exhausted: nearly all of it on loan, packets found no page, and the other flow stood still.
    CHECK(course.held > 3 * mebibyte);
    CHECK(course.at_stall_end.failures > 0);
    CHECK(course.at_stall_end.sent < stream_bytes);
    // And the session says all of that.
    fmt::print("{}\n", course.explained);
    auto const& pool = course.at_stall_end.pool;
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
    auto const course = run_course(
        {.max_flows = 2, .receive_memory = 2 * mebibyte, .loan_limit = mebibyte},
        [](hoarder const& keeps) { return keeps.waits(); }, [](moment const& now) { return now.is_through; });
    INFO(course.hoarded << '\n' << course.ordinary);
    CHECK(intact(course.hoarded, stream_bytes));
    CHECK(intact(course.ordinary, stream_bytes));
    // It was at its limit (a loan is whole segments), and the other flow finished meanwhile.
    CHECK(course.held <= mebibyte);
    CHECK(course.held > mebibyte / 2);
    CHECK(course.hoarded.stats.loan_waits > 0);
    CHECK(course.at_stall_end.is_through);
}
