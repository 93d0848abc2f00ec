// SPDX-License-Identifier: Apache-2.0
//
// Tensor streams over the lab's wire: the NIC writes frames into device memory, and every row is in a batch once.
#include "../ingest/bed.hpp"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include "bed.hpp"
#include "nic.hpp"

#if defined(GPURX_LAB_HAS_GPU)
#include "../gpu/bed.hpp"
#include "fake_cuda.hpp"
#endif

using namespace gpurx::lab;
using namespace std::chrono_literals;
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

namespace {

constexpr std::uint64_t good_frames = 3;  // that a bad sender sends before

void send_good_frames(sender& by, std::uint32_t source)
{
    for (std::uint64_t i = 0; i < good_frames; ++i) {
        by.send(frame_of(source, i));
        static_cast<void>(by.read_ack());
    }
}

// What a bad sender sends then.
using damage = void (*)(std::vector<std::byte>& bytes);

void send_bad_frame(tcp::endpoint to, std::uint32_t source, bool with_crc, damage how)
{
    enter_peer_namespace();
    sender bad{to};
    send_good_frames(bad, source);
    auto next = frame_of(source, good_frames);
    next.crc = with_crc;
    auto bytes = next.bytes();
    auto const size = bytes.size();
    how(bytes);
    try {
        bad.send(bytes);
        if (bytes.size() < size)
            return bad.reset();
        static_cast<void>(bad.read_ack());
    } catch (boost::system::system_error const&) {
        // It is refused, perhaps before it has sent all.
    }
}

// Two small frames, each byte in a segment of its own.
void send_byte_by_byte(tcp::endpoint to, std::uint32_t source)
{
    enter_peer_namespace();
    sender slow{to};
    for (std::uint64_t i = 0; i < 2; ++i) {
        frame const small{
            .source = source, .sequence = i, .first_row = i * 20, .rows = 20, .last = i == 1, .crc = true};
        for (auto const& byte : small.bytes())
            slow.send({&byte, 1});
    }
}

// Connections that say nothing, until `end`.
void stay_silent(tcp::endpoint to, std::promise<void>& connected, std::shared_future<void> end)
{
    enter_peer_namespace();
    std::vector<std::unique_ptr<sender>> silent;
    for (int i = 0; i < 100; ++i)
        silent.push_back(std::make_unique<sender>(to));
    connected.set_value();
    end.wait();
}

asio::awaitable<void> count_rows_after_a_pause(tensor_stream& stream, std::map<std::uint32_t, std::uint64_t>& next_row,
                                               std::uint64_t& out_of_order)
{
    asio::steady_timer pause{co_await asio::this_coro::executor, 10s};
    co_await pause.async_wait(asio::use_awaitable);
    co_await count_rows(stream, {}, next_row, out_of_order);
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "senders that are cut, wrong or silent, and a trainer that stands still, cost no row",
                 "[tensor]")
{
    constexpr std::uint32_t whole = 0, slow = 1, wrong_crc = 2, wrong_magic = 3, absurd = 4, cut = 5;
    auto session = open_session(64 * mebibyte, {.rx_queues = 2, .max_flows = 120});
    asio::io_context context{1};
    tensor_stream stream{
        context,
        session,
        {.listen = {{near_address(family::v4), 0}}, .sources = 6, .batch_size = 1024, .reconnect_timeout = 2s}};
    auto const to = stream.local_endpoints()[0];
    std::map<std::uint32_t, std::uint64_t> next_row;
    std::uint64_t out_of_order = 0;
    {
        std::promise<void> connected;
        std::promise<void> end;
        std::jthread const silent{stay_silent, to, std::ref(connected), end.get_future().share()};
        // The stream takes them in meanwhile: its listener lets few wait.
        auto all = connected.get_future();
        while (all.wait_for(0s) != std::future_status::ready) {
            context.run_for(10ms);
            context.restart();
        }
        std::vector<std::jthread> senders;
        senders.emplace_back(send_all, to, whole, frames);
        senders.emplace_back(send_byte_by_byte, to, slow);
        auto const bad = [&](std::uint32_t source, bool with_crc, damage how) {
            senders.emplace_back(send_bad_frame, to, source, with_crc, how);
        };
        bad(wrong_crc, true, [](auto& bytes) { bytes.back() ^= std::byte{1}; });
        bad(wrong_magic, false, [](auto& bytes) { bytes[0] = std::byte{'x'}; });
        bad(absurd, false, [](auto& bytes) { bytes[31] = std::byte{0x80}; });  // 2^63 rows, and some
        bad(cut, false, [](auto& bytes) { bytes.resize(bytes.size() / 2); });
        asio::co_spawn(context, count_rows_after_a_pause(stream, next_row, out_of_order), rethrow);
        context.run();
        end.set_value();
    }
    CHECK(out_of_order == 0);
    CHECK(next_row[whole] == frames * rows_each);
    CHECK(next_row[slow] == 40);
    for (auto const source : {wrong_crc, wrong_magic, absurd, cut})
        CHECK(next_row[source] == good_frames * rows_each);
    std::map<std::uint32_t, gpurx::error_code> errors;
    for (auto const& each : stream.errors()) {
        fmt::print("{}\n", describe(each.code, each.why));
        if (each.source)
            errors[*each.source] = each.code;
    }
    using gpurx::ingest::errc;
    CHECK(errors.size() == 4);
    CHECK(errors[wrong_crc] == errc::wrong_checksum);
    CHECK(errors[wrong_magic] == errc::bad_frame);
    CHECK(errors[absurd] == errc::bad_frame);
    CHECK(errors[cut] == errc::stream_cut);
    auto const stats = stream.stats();
    CHECK(stats.connections == 106);
    CHECK(stats.memory_high_water < 4 * mebibyte);
    CHECK(session.stats().host_bytes == 0);
    CHECK(session.stats().release_failures == 0);
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
