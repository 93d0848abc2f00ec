// SPDX-License-Identifier: Apache-2.0
//
// The NIC writes memory that a CUDA driver allocated and exported: the fake one, whose memory is udmabuf's here. No
// byte of it can be touched by the CPU.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <gpurx/gather.hpp>
#include <random>

#include "../gpu/bed.hpp"
#include "bed.hpp"
#include "fake_cuda.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using gpurx::cuda_stream_ref;
using gpurx::test::gpu_bytes;
using gpurx::test::gpu_or_skip;
using gpurx::test::gpu_test_stream;

namespace {

// What has been enqueued and will be compared when its stream has run.
struct placed {
    std::unique_ptr<gpu_bytes> tensor;
    std::uint64_t position;
    std::size_t size;
};

bool holds(placed const& what, std::uint64_t seed)
{
    auto const bytes = what.tensor->read();
    for (std::size_t at = 0; at < what.size; at += pattern_period) {
        auto const expected = pattern(seed, what.position + at).first(std::min(pattern_period, what.size - at));
        if (!std::ranges::equal(expected, std::span{bytes}.subspan(at, expected.size())))
            return false;
    }
    return true;
}

// Reads and loans in turn, each on the next of the streams.
asio::awaitable<void> consume_on_gpu(gpurx::receiver rx, std::span<std::unique_ptr<gpu_test_stream>> streams,
                                     std::vector<placed>& all, std::uint64_t& seed, gpurx::stats& stats)
{
    auto& on = gpu_or_skip();
    co_await gpurx::async_read(rx, gpurx::host_span(seed));
    std::mt19937 random{10};
    std::uint64_t position = 0;
    for (std::size_t i = 0;; ++i) {
        auto const stream = streams[i % streams.size()]->ref();
        if (i % 2 == 0) {
            placed next{std::make_unique<gpu_bytes>(on, 200'000), position, 1 + random() % 200'000};
            auto const [error, size] =
                co_await gpurx::async_read(rx, next.tensor->span().first(next.size), stream, token);
            next.size = size;
            position += size;
            all.push_back(std::move(next));
            if (error)
                break;
        } else {
            auto [error, loan] = co_await rx.async_receive(token);
            if (error)
                break;
            placed next{std::make_unique<gpu_bytes>(on, loan.size()), position, loan.size()};
            gpurx::gather(loan.fragments(), next.tensor->span(), stream);
            position += loan.size();
            loan.release_after(stream);
            all.push_back(std::move(next));
        }
    }
    stats = rx.stats();
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "the NIC writes a GPU's memory, and streams read it before its pages go back", "[gpu]")
{
    auto& on = gpu_or_skip();
    auto const memory = gpurx::device_memory::on_gpu(0, 16 * mebibyte);
    INFO(memory.explain());
    REQUIRE(memory.dmabuf_fd() >= 0);
    REQUIRE(memory.explain().find("exported by udmabuf") != std::string::npos);
    constexpr std::uint64_t bytes = 6 * mebibyte + 123;
    std::vector<std::unique_ptr<gpu_test_stream>> streams;
    for (int i = 0; i < 3; ++i)
        streams.push_back(std::make_unique<gpu_test_stream>(on));
    std::vector<placed> all;
    std::uint64_t seed = 0;
    gpurx::stats stats;
    {
        auto session = open_session(memory, {.max_flows = 2});
        INFO(session.explain());
        asio::io_context context{1};
        auto acceptor = listen_on(session, context.get_executor(), family::v4);
        peer_sender const sender{acceptor.local_endpoint(), {77, bytes}};
        asio::co_spawn(context, consume_on_gpu({context, session, acceptor.accept()}, streams, all, seed, stats),
                       rethrow);
        context.run();
        for (auto& stream : streams)
            stream->finish();
    }
    CHECK(seed == 77);
    std::uint64_t sum = 0;
    for (auto const& each : all) {
        CAPTURE(each.position, each.size);
        REQUIRE(holds(each, seed));
        sum += each.size;
    }
    CHECK(sum == bytes);
    CHECK(stats.device_bytes == bytes + sizeof seed);
    CHECK(stats.release_failures == 0);
    CHECK(stats.release_shortfalls == 0);
    CHECK(fake_cuda::violations() == std::vector<std::string>{});
}
