// SPDX-License-Identifier: Apache-2.0
//
// How often the driver is asked whether streams have passed, and how soon it is known.
#include <catch2/generators/catch_generators.hpp>
#include <gpurx/cuda_stream.hpp>

#include <set>

#include "cuda/poll_schedule.hpp"
#include "fake_world.hpp"

namespace gpurx::test {

namespace {

using detail::cuda::next_poll;
using detail::cuda::poll_clock;

constexpr poll_clock::time_point start{1h};

// Loans that wait for as many streams, which stand still.
struct parked : nic_into_gpu {
    static constexpr std::size_t count = 64;

    parked()
    {
        for (std::size_t i = 0; i < count; ++i) {
            streams.push_back(std::make_unique<gpu_test_stream>(gpu_or_skip()));
            fake_cuda::hold(streams.back()->get());
            to.send(1000);
            receive(*this, rx)->loan.release_after(streams.back()->ref());
        }
    }
    ~parked() { let_go(); }
    parked(parked const&) = delete;
    parked& operator=(parked const&) = delete;

    // Each stands still for so long and more: also as the thread sees it that asks, which may have come to it late.
    void stand_still_for(poll_clock::duration time)
    {
        auto const before = fake_cuda::calls("cuEventQuery");
        detail::look_at_streams();
        REQUIRE(soon([&] { return fake_cuda::calls("cuEventQuery") - before >= 2 * count; }));
        std::this_thread::sleep_for(time);
    }

    void let_go()
    {
        for (auto const& stream : streams)
            fake_cuda::let_go(stream->get());
    }

    sender to{wires};
    receiver rx = flow(to);
    std::vector<std::unique_ptr<gpu_test_stream>> streams;
};

}  // namespace

TEST_CASE("a stream is asked for often at first, and as seldom as it has stood still for long")
{
    auto const& with = detail::cuda::limits_of_pages;
    CHECK(next_poll(start, start, with) - start == 80us);
    CHECK(next_poll(start + 640us, start, with) - (start + 640us) == 80us);
    CHECK(next_poll(start + 960ms, start, with) - (start + 960ms) == 16ms);
    // However long it takes: late by an eighth at most.
    for (poll_clock::duration age = 1us; age < 10s; age = age * 3 / 2 + 1us) {
        auto const pause = next_poll(start + age, start, with) - (start + age);
        CHECK(pause > 0us);
        CHECK(pause <= std::max<poll_clock::duration>(age / 8, 80us));
    }
}

TEST_CASE("a stream that pages of a pool wait for is asked for each millisecond at first")
{
    auto const& with = detail::cuda::limits_of_pool;
    for (poll_clock::duration age = 0us; age < 10s; age = age * 3 / 2 + 1us) {
        auto const next = next_poll(start + age, start, with);
        CHECK(next - (start + age) <= std::max<poll_clock::duration>(age / 8, 1ms));
        // The first may end early, at a common turn.
        CHECK(next_poll(next, start, with) - (start + age) >= 1ms);
    }
}

TEST_CASE("pages of transport copy are asked for each millisecond, until a flow lacks pages or somebody waits")
{
    clean_driver const clean;
    gpu_world in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const stream = cuda_stream::on(0);
    asio::io_context io{1};
    auto const queries = [] { return fake_cuda::calls("cuEventQuery"); };
    auto const hurry = GENERATE(false, true);
    // Seven queries take 6 ms at least for a pool's pages, on any machine. For others they take 0.5 ms, where nobody
    // else is in the way: a busy machine needs some tries.
    auto hurried = false;
    for (int tries = 0; tries < 200 && !hurried; ++tries) {
        fake_cuda::hold(stream.get());
        to.send(1000);
        receive_bytes(in, rx)->loan.release_after(stream);
        auto const began = poll_clock::now();
        auto const before = queries();
        while (poll_clock::now() - began < 5ms) {
        }
        auto const asked = queries() - before;
        CHECK(static_cast<double>(asked) <= 3 + (poll_clock::now() - began) / 1.0ms);
        auto const then = queries();
        auto const from = poll_clock::now();
        auto over = 0;
        auto const wait = [&] {
            async_wait(io.get_executor(), stream, [&](error_code code) { over += code ? 0 : 1; });
        };
        hurry ? detail::look_at_streams() : wait();
        REQUIRE(soon([&] { return queries() - then >= 7; }));
        hurried = poll_clock::now() - from < 5ms;
        fake_cuda::let_go(stream.get());
        // It is told behind the pages.
        if (hurry)
            wait();
        io.restart();
        io.run_for(60s);
        CHECK(over == 1);
    }
    CHECK(hurried);
}

TEST_CASE("streams that stand still for long are asked for together, whenever they began")
{
    auto const& with = GENERATE(as<detail::cuda::poll_limits>{}, detail::cuda::limits_of_pages,
                                detail::cuda::limits_of_pool, detail::cuda::limits_of_waits);
    std::set<poll_clock::duration> turns;
    for (poll_clock::duration began{}; began < 60ms; began += 1700us + 1ns) {
        auto at = start + began;
        // Somebody else is in the way for up to 100 us.
        for (int late = 0; at < start + 1s; late = (late + 7) % 100)
            at = next_poll(at + late * 1us, start + began, with);
        turns.insert(at.time_since_epoch() % with.longest);
    }
    CHECK(turns == std::set<poll_clock::duration>{0ns});
}

TEST_CASE("64 streams that stand still cost 5,000 questions to the driver a second at most")
{
    parked in;
    in.stand_still_for(150ms);
    // Those counted are of this time, or less: however long any of this takes.
    auto const began = poll_clock::now();
    auto const before = fake_cuda::calls("cuEventQuery");
    std::this_thread::sleep_for(200ms);
    REQUIRE(soon([&] { return fake_cuda::calls("cuEventQuery") > before; }));
    auto const questions = static_cast<double>(fake_cuda::calls("cuEventQuery") - before);
    CHECK(questions / std::chrono::duration<double>(poll_clock::now() - began).count() < 5000);
    in.let_go();
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("a stream that comes in is asked for at once, whatever others do")
{
    parked in;
    in.stand_still_for(150ms);  // then all are asked together, every 16 ms
    auto const parked_tokens = in.kernel.tokens_out();
    gpu_test_stream fresh{gpu_or_skip()};
    // One that waits for the others' turn is over only when they have all been asked, too. By chance that may be so of
    // one that does not wait: on a busy machine of nearly all.
    int alone = 0;
    for (int tries = 0; tries < 2000 && alone < 20; ++tries) {
        in.to.send(1000);
        auto const got = receive(in, in.rx);
        auto const before = fake_cuda::calls("cuEventQuery");
        got->loan.release_after(fresh.ref());
        REQUIRE(soon([&] { return in.kernel.tokens_out() == parked_tokens; }));
        alone += fake_cuda::calls("cuEventQuery") - before < parked::count ? 1 : 0;
    }
    CHECK(alone == 20);
}

TEST_CASE("a flow that lacks pages has all streams asked for at once")
{
    parked in;
    // So many rounds of those that stand still take 160 ms at least, on any machine. Of those that have just come in
    // they take 2 ms, where nobody else is in the way: a busy machine needs some tries.
    constexpr std::size_t rounds = 12;
    auto hurried = false;
    for (int tries = 0; tries < 200 && !hurried; ++tries) {
        in.stand_still_for(150ms);
        auto const before = fake_cuda::calls("cuEventQuery");
        auto const began = poll_clock::now();
        detail::look_at_streams();
        REQUIRE(soon([&] { return fake_cuda::calls("cuEventQuery") - before >= rounds * parked::count; }));
        hurried = poll_clock::now() - began < 80ms;
    }
    CHECK(hurried);
}

TEST_CASE("a flow that lacks pages while the driver is being asked need not wait for the next pause")
{
    parked in;
    // Of streams that stand still the next pause takes 16 ms. A busy machine needs some tries.
    auto hurried = false;
    for (int tries = 0; tries < 50 && !hurried; ++tries) {
        in.stand_still_for(150ms);
        auto const before = fake_cuda::calls("cuEventQuery");
        fake_cuda::stall("cuEventQuery");
        auto const is_asked = soon([&] { return fake_cuda::calls("cuEventQuery") > before; });
        detail::look_at_streams();
        auto const began = poll_clock::now();
        fake_cuda::go_on("cuEventQuery");
        REQUIRE(is_asked);
        REQUIRE(soon([&] { return fake_cuda::calls("cuEventQuery") - before >= 4 * parked::count; }));
        hurried = poll_clock::now() - began < 8ms;
    }
    CHECK(hurried);
}

TEST_CASE("a wait for a stream is late by a millisecond at most")
{
    auto const& with = detail::cuda::limits_of_waits;
    CHECK(next_poll(start + 10s, start, with) - (start + 10s) <= 1ms);
    CHECK(next_poll(start + 6400us, start, with) - (start + 6400us) <= 100us);
}

}  // namespace gpurx::test
