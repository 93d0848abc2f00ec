// SPDX-License-Identifier: Apache-2.0
//
// Threads: loans come back from anywhere at any time; distinct receivers and sessions run in parallel. Catch2's
// assertions are made on the test's thread only. Worth most under ThreadSanitizer.
#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <condition_variable>
#include <deque>
#include <future>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

struct lent {
    rx_buffer buffer;
    std::size_t offset = 0;
};

// Threads that check and give back what they are handed.
class releasers {
  public:
    explicit releasers(unsigned count)
    {
        for (unsigned i = 0; i < count; ++i)
            threads_.emplace_back([this] { work(); });
    }
    // What is still queued is released first.
    ~releasers() { finish(); }

    void hand(rx_buffer buffer, std::size_t offset)
    {
        {
            std::lock_guard const lock{mutex_};
            queue_.push_back({std::move(buffer), offset});
        }
        wake_.notify_one();
    }
    // True if all of it was right.
    bool finish()
    {
        {
            std::lock_guard const lock{mutex_};
            closed_ = true;
        }
        wake_.notify_all();
        for (auto& thread : threads_)
            thread.join();
        threads_.clear();
        return right_;
    }

  private:
    void work()
    {
        for (;;) {
            lent next;
            {
                std::unique_lock lock{mutex_};
                wake_.wait(lock, [this] { return closed_ || !queue_.empty(); });
                if (queue_.empty())
                    return;
                next = std::move(queue_.front());
                queue_.pop_front();
            }
            next.buffer.acquire();
            if (!is_pattern(next.buffer, next.offset))
                right_ = false;
            next.buffer.release_after(cuda_stream_ref{});
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<lent> queue_;
    bool closed_ = false;
    std::atomic<bool> right_{true};
    std::vector<std::thread> threads_;
};

// Receives to the end; now and then by a read. The number of bytes, or -1 if something was wrong.
asio::awaitable<long> consume(receiver rx, releasers& to)
{
    std::size_t received = 0;
    std::array<std::byte, 700> header{};
    for (int i = 0;; ++i) {
        if (i % 7 == 6) {
            auto const [code, placed] = co_await async_read(rx, host_span{header}, asio::as_tuple(asio::use_awaitable));
            if (!is_pattern(std::span{header}.first(placed), received))
                co_return -1;
            received += placed;
            if (code)
                co_return static_cast<long>(received);
        }
        auto [code, loan] = co_await rx.async_receive(asio::as_tuple(asio::use_awaitable));
        if (code)
            co_return code == asio::error::eof ? static_cast<long>(received) : -1;
        auto const size = loan.size();
        to.hand(std::move(loan), received);
        received += size;
    }
}

}  // namespace

TEST_CASE("loans come back from other threads while the receiver works, waits and ends")
{
    world in{any_transport(), {.loan_limit = 200000}};
    sender to{in.wires};
    releasers pool{3};
    auto result = asio::co_spawn(*in.io, consume(in.flow(to), pool), asio::use_future);
    std::thread runner{[&] { in.io->run(); }};
    constexpr std::size_t total = 8 << 20;
    while (to.sent() < total)
        to.send(std::min<std::size_t>(50000, total - to.sent()));
    to.finish();
    CHECK(result.get() == static_cast<long>(total));
    runner.join();
    CHECK(pool.finish());
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("flows of one session on several threads, a strand each")
{
    world in{any_transport(), {.loan_limit = 100000}};
    releasers pool{2};
    constexpr std::size_t total = 2 << 20;
    asio::thread_pool workers{3};
    std::deque<sender> senders;
    std::vector<std::future<long>> results;
    for (int i = 0; i < 4; ++i) {
        auto& to = senders.emplace_back(in.wires);
        auto const strand = asio::make_strand(workers);
        results.push_back(asio::co_spawn(strand, consume(in.flow(to, strand), pool), asio::use_future));
    }
    std::vector<std::thread> feeders;
    for (auto& to : senders)
        feeders.emplace_back([&to] {
            while (to.sent() < total)
                to.send(std::min<std::size_t>(30000, total - to.sent()));
            to.finish();
        });
    for (auto& feeder : feeders)
        feeder.join();
    for (auto& result : results)
        CHECK(result.get() == static_cast<long>(total));
    workers.join();
    CHECK(pool.finish());
    CHECK((*in.session).stats().bytes() == 4 * total);
}

TEST_CASE("the last loans end flow and session on whatever thread they die")
{
    auto const kind = any_transport();
    for (int round = 0; round < 30; ++round) {
        world in{kind};
        sender to{in.wires};
        std::optional rx{in.flow(to)};
        std::vector<rx_buffer> loans;
        for (int i = 0; i < 8; ++i) {
            to.send(3000);
            auto const got = make_completion();
            rx->async_receive(noting{got});
            in.run_until([&] { return got->done(); });
            loans.push_back(std::move(got->loan));
        }
        std::latch go{5};
        std::vector<std::thread> threads;
        for (std::size_t t = 0; t < 4; ++t)
            threads.emplace_back([&, t] {
                go.arrive_and_wait();
                loans[2 * t].release();
                loans[2 * t + 1] = {};
            });
        go.arrive_and_wait();
        rx.reset();
        in.session.drop();
        for (auto& thread : threads)
            thread.join();
        REQUIRE(in.session.ended());
    }
}

TEST_CASE("counters may be read while everything moves")
{
    world in{any_transport(), {.loan_limit = 200000}};
    sender to{in.wires};
    releasers pool{2};
    auto result = asio::co_spawn(*in.io, consume(in.flow(to), pool), asio::use_future);
    std::thread runner{[&] { in.io->run(); }};
    std::atomic<bool> stop{false};
    bool sane = true;
    std::thread reader{[&] {
        std::uint64_t last = 0;
        while (!stop) {
            auto const now = (*in.session).stats();
            sane = sane && now.bytes() >= last;
            last = now.bytes();
        }
    }};
    while (to.sent() < 4 << 20)
        to.send(65536);
    to.finish();
    CHECK(result.get() == 4 << 20);
    stop = true;
    reader.join();
    runner.join();
    CHECK(pool.finish());
    CHECK(sane);
    CHECK((*in.session).stats().tokens_out == 0);
}

}  // namespace gpurx::test
