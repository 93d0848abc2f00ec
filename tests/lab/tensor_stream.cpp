// SPDX-License-Identifier: Apache-2.0
//
// Tensor streams over the lab's wire: the NIC writes frames into device memory, and every row is in a batch once.
#include "../ingest/bed.hpp"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <map>
#include <thread>

#include "bed.hpp"
#include "nic.hpp"

#if defined(GPURX_LAB_HAS_GPU)
#include "../gpu/bed.hpp"
#include "fake_cuda.hpp"
#endif

using namespace gpurx::lab;
using gpurx::ingest::frame_order;
using gpurx::ingest::tensor_stream;
using gpurx::ingest::test::frame;
using gpurx::ingest::test::rows_of;
using gpurx::ingest::test::sender;

namespace {

constexpr std::uint32_t sources = 4;
constexpr std::uint64_t frames = 24;
constexpr std::uint64_t rows_each = 5000;  // of 20 bytes

frame frame_of(std::uint32_t source, std::uint64_t sequence)
{
    return {.source = source,
            .sequence = sequence,
            .first_row = sequence * rows_each,
            .rows = rows_each,
            .last = sequence + 1 == frames,
            .ack = true,
            .crc = sequence % 2 == 0};
}

// Sends until a connection is cut in the middle of frame `cut_in`, then goes on after the last acknowledgement.
void send_all(tcp::endpoint to, std::uint32_t source, std::uint64_t cut_in)
{
    enter_peer_namespace();
    std::uint64_t acknowledged = 0;
    {
        sender first{to};
        for (; acknowledged < cut_in; ++acknowledged) {
            first.send(frame_of(source, acknowledged));
            if (first.read_ack() != acknowledged)
                return;
        }
        if (cut_in < frames) {
            auto const bytes = frame_of(source, cut_in).bytes();
            first.send(std::span{bytes}.first(bytes.size() / 2));
            source % 2 == 0 ? first.reset() : first.close();
        }
    }
    if (acknowledged == frames)
        return;
    sender again{to};
    for (auto i = acknowledged > 0 ? acknowledged - 1 : 0; i < frames; ++i) {
        again.send(frame_of(source, i));
        if (again.read_ack() != i)
            return;
    }
}

asio::awaitable<void> count_rows(tensor_stream& stream, gpurx::cuda_stream_ref consumer,
                                 std::map<std::uint32_t, std::uint64_t>& next_row, std::uint64_t& out_of_order)
{
    for (;;) {
        auto [error, batch] = co_await stream.async_next(token);
        if (error == asio::error::eof)
            co_return;
        if (error)
            throw boost::system::system_error{error};
        for (auto const& row : rows_of(batch, consumer))
            out_of_order += row.number != next_row[row.source]++ ? 1 : 0;
    }
}

// All rows of all sources come once, in the order of their source, though two senders are cut.
void check_stream(gpurx::rx_session& session, gpurx::ingest::tensor_stream_options options)
{
    options.sources = sources;
    options.batch_size = 1024;
    asio::io_context context{1};
    tensor_stream stream{context, session, options};
    std::map<std::uint32_t, std::uint64_t> next_row;
    std::uint64_t out_of_order = 0;
    {
        std::vector<std::jthread> senders;
        for (std::uint32_t source = 0; source < sources; ++source)
            senders.emplace_back(send_all, stream.local_endpoints()[0], source, source < 2 ? 5 + source : frames);
        asio::co_spawn(context, count_rows(stream, options.stream, next_row, out_of_order), rethrow);
        context.run();
    }
    CHECK(out_of_order == 0);
    for (std::uint32_t source = 0; source < sources; ++source)
        CHECK(next_row[source] == frames * rows_each);
    CHECK(stream.errors().empty());
    auto const stats = stream.stats();
    CHECK(stats.connections == sources + 2);
    CHECK(stats.duplicates == 2);
    CHECK(stats.frames == sources * frames);
    auto const received = session.stats();
    CHECK(received.device_bytes >= stats.payload_bytes);
    CHECK(received.host_bytes == 0);
    CHECK(received.release_failures == 0);
    fmt::print("{} batches of {} bytes in all, memory for them {}, most pages on loan {}\n", stats.batches,
               stats.payload_bytes, stats.memory_high_water, received.tokens_high_water);
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic,
                 "rows of a tensor stream come once each through device memory, also of senders that are cut",
                 "[tensor]")
{
    auto const version = GENERATE(family::v4, family::v6);
    auto const order = GENERATE(frame_order::as_they_come, frame_order::rounds);
    auto session = open_session(32 * mebibyte, {.rx_queues = 2, .max_flows = 8});
    check_stream(session, {.listen = {{near_address(version), 0}}, .order = order});
    CHECK(session.stats().tokens_out == 0);
}

#if defined(GPURX_LAB_HAS_GPU)
TEST_CASE_METHOD(unchanged_nic, "rows of a tensor stream come once each into a GPU's memory", "[tensor][gpu]")
{
    auto& on = gpurx::test::gpu_or_skip();
    gpurx::test::gpu_test_stream consumer{on};
    auto session = open_session(gpurx::device_memory::on_gpu(0, 32 * mebibyte), {.max_flows = 8});
    check_stream(session, {.listen = {{near_address(family::v4), 0}}, .gpu = 0, .stream = consumer.ref()});
    consumer.finish();
    CHECK(fake_cuda::violations() == std::vector<std::string>{});
}
#endif
