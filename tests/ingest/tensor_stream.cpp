// SPDX-License-Identifier: Apache-2.0
//
// Rows from senders to batches: none lost, none twice, in the order that was asked for.
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <map>
#include <thread>

#include "bed.hpp"
#include "descriptors.hpp"

namespace gpurx::ingest::test {

namespace {

// Sends frames of `rows_each` rows, then the end.
void send_all(sender& to, std::uint32_t source, std::uint64_t frames, std::uint64_t rows_each)
{
    for (std::uint64_t i = 0; i < frames; ++i)
        to.send({.source = source, .sequence = i, .first_row = i * rows_each, .rows = rows_each, .crc = i % 2 == 0});
    to.send({.source = source, .sequence = frames, .last = true});
}

// A connect that waits for its answer elsewhere. (Asio's own would wait here.)
class pending_connection {
  public:
    void begin(tcp::endpoint const& to)
    {
        socket_.open(to.protocol());
        socket_.native_non_blocking(true);
        ::connect(socket_.native_handle(), to.data(), static_cast<socklen_t>(to.size()));
    }
    [[nodiscard]] bool is_established() const
    {
        error_code code;
        static_cast<void>(socket_.remote_endpoint(code));
        return !code;
    }

  private:
    asio::io_context io_{1};
    tcp::socket socket_{io_};
};

std::vector<row> rows_of_source(std::vector<row> all, std::uint32_t source)
{
    std::erase_if(all, [&](row const& each) { return each.source != source; });
    return all;
}

}  // namespace

TEST_CASE("frames of any number of rows become batches of one size, and the last is what is left")
{
    auto const drop_last = GENERATE(false, true);
    bed in{listening({.batch_size = 8, .drop_last = drop_last})};
    sender from{in.where()};
    std::uint64_t sent = 0;
    std::uint64_t sequence = 0;
    for (std::uint64_t const rows : {1, 7, 8, 9, 30, 3})
        from.send({.sequence = sequence++, .first_row = std::exchange(sent, sent + rows), .rows = rows});
    from.send({.sequence = sequence, .last = true});
    for (std::uint64_t row = 0; row < 56; row += 8)
        CHECK(in.next_rows() == rows_from(0, row, 8));
    if (!drop_last)
        CHECK(in.next_rows() == rows_from(0, 56, 2));
    CHECK(in.next()->code == asio::error::eof);
    CHECK(in.next()->code == asio::error::eof);
    CHECK(in.stream->errors().empty());
    CHECK(in.stream->stats().rows == 58);
    CHECK(in.stream->stats().frames == 7);
    CHECK(in.stream->stats().batches == (drop_last ? 7 : 8));
}

TEST_CASE("a batch has the names, types and shapes of the stream, and aligned bytes")
{
    bed in{listening({.batch_size = 5})};
    sender from{in.where()};
    from.send({.rows = 5, .last = true});
    auto const result = in.next();
    auto const& got = result->got;
    REQUIRE(got.tensors().size() == 2);
    CHECK(got.tensors()[0].name == "x");
    CHECK(got["x"].type == dtype::f32);
    CHECK(got["y"].type == dtype::i64);
    CHECK(got["x"].bytes.size() == 60);
    CHECK(got["x"].bytes.kind() == memory_kind::host);
    CHECK(got["x"].bytes.address() % 256 == 0);
    CHECK(got["y"].bytes.address() % 256 == 0);
    CHECK(got.find("z") == nullptr);
    CHECK_THROWS_AS(got["z"], std::out_of_range);
}

TEST_CASE("a program that is executed gets no descriptor of a stream")
{
    auto const before = gpurx::test::inherited_descriptors();
    bed in{listening({.batch_size = 4})};
    sender from{in.where()};
    from.send({.rows = 4});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    auto now = gpurx::test::inherited_descriptors();
    REQUIRE(now.erase(from.socket().native_handle()) == 1);
    CHECK(now == before);
}

TEST_CASE("as they come, a slow source does not delay the others")
{
    bed in{listening({.sources = 2, .batch_size = 4})};
    sender slow{in.where()};
    sender fast{in.where()};
    for (std::uint64_t i = 0; i < 6; ++i)
        fast.send({.source = 1, .sequence = i, .first_row = 2 * i, .rows = 2});
    for (std::uint64_t row = 0; row < 12; row += 4)
        CHECK(in.next_rows() == rows_from(1, row, 4));
    fast.send({.source = 1, .sequence = 6, .last = true});
    slow.send({.source = 0, .rows = 4, .last = true});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    CHECK(in.next()->code == asio::error::eof);
}

TEST_CASE("in rounds, the batches are the same whoever is first")
{
    auto const order = GENERATE(std::vector<std::uint32_t>{0, 1, 2}, std::vector<std::uint32_t>{2, 1, 0},
                                std::vector<std::uint32_t>{1, 2, 0});
    bed in{listening({.sources = 3, .batch_size = 100, .order = frame_order::rounds})};
    std::vector<std::unique_ptr<sender>> senders;
    for (auto const source : order) {
        senders.push_back(std::make_unique<sender>(in.where()));
        // Source 0 ends first, and source 2 has the longest frames.
        send_all(*senders.back(), source, 1 + source, 3 + source);
        in.run_for(5ms);
    }
    auto expected = rows_from(0, 0, 3);
    for (auto const& more :
         {rows_from(1, 0, 4), rows_from(2, 0, 5), rows_from(1, 4, 4), rows_from(2, 5, 5), rows_from(2, 10, 5)})
        expected.insert(expected.end(), more.begin(), more.end());
    CHECK(in.rest() == expected);
}

TEST_CASE("a rank receives the sources whose number modulo the world's size is its own")
{
    bed in{listening({.sources = 5, .rank = 1, .world_size = 2, .batch_size = 10, .order = frame_order::rounds})};
    sender one{in.where()};
    sender three{in.where()};
    one.send({.source = 1, .rows = 2, .last = true});
    three.send({.source = 3, .rows = 2, .last = true});
    auto expected = rows_from(1, 0, 2);
    for (auto const& each : rows_from(3, 0, 2))
        expected.push_back(each);
    CHECK(in.rest() == expected);
}

TEST_CASE("no more connections wait to be accepted than there are sources, and a few strangers")
{
    constexpr unsigned sources = 3;  // of this rank
    constexpr unsigned strangers = 4;
    bed in{listening({.sources = 2 * sources, .world_size = 2})};
    std::vector<pending_connection> callers(2 * (sources + strangers));
    // Nobody accepts, for no handler runs.
    for (auto& each : callers)
        each.begin(in.where());
    auto const established = [&] { return std::ranges::count_if(callers, &pending_connection::is_established); };
    while (established() < sources + strangers)
        std::this_thread::sleep_for(1ms);
    CHECK(established() == sources + strangers);
}

TEST_CASE("a rank without a source is at the end at once")
{
    bed in{listening({.sources = 2, .rank = 2, .world_size = 3})};
    CHECK(in.next()->code == asio::error::eof);
}

TEST_CASE("it connects to its sources, and again when one is gone")
{
    asio::io_context io{1};
    tcp::acceptor acceptor{io, {asio::ip::address_v4::loopback(), 0}};
    tcp::acceptor other{io, {asio::ip::address_v4::loopback(), 0}};
    bed in{{.connect = {acceptor.local_endpoint(), other.local_endpoint()}, .batch_size = 4}};
    CHECK(in.stream->local_endpoints().empty());
    sender first;
    in.accept(acceptor, first);
    sender second;
    in.accept(other, second);
    first.send({.source = 0, .rows = 4});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    first.reset();
    sender again;
    in.accept(acceptor, again);
    again.send({.source = 0, .sequence = 1, .first_row = 4, .rows = 4, .last = true});
    CHECK(in.next_rows() == rows_from(0, 4, 4));
    second.send({.source = 1, .rows = 4, .last = true});
    CHECK(in.next_rows() == rows_from(1, 0, 4));
    CHECK(in.next()->code == asio::error::eof);
    CHECK(in.stream->errors().empty());
    CHECK(in.stream->stats().connections == 3);
}

TEST_CASE("it waits for a source to listen")
{
    asio::io_context io{1};
    tcp::endpoint const there = tcp::acceptor{io, {asio::ip::address_v4::loopback(), 0}}.local_endpoint();
    bed in{{.connect = {there}, .batch_size = 4}};
    in.run_for(20ms);
    tcp::acceptor acceptor{io, there};
    sender from;
    in.accept(acceptor, from);
    from.send({.rows = 4, .last = true});
    CHECK(in.rest() == rows_from(0, 0, 4));
}

TEST_CASE("frames are acknowledged once their bytes are here and right, also before the first batch is requested")
{
    auto const crc = GENERATE(false, true);
    bed in{listening({.batch_size = 4, .queue_depth = 4})};
    sender from{in.where()};
    for (std::uint64_t i = 0; i < 3; ++i) {
        from.send({.sequence = i, .first_row = 4 * i, .rows = 4, .last = i == 2, .ack = true, .crc = crc});
        CHECK(in.ack_of(from) == i);
    }
    CHECK(in.rest().size() == 12);
}

TEST_CASE("bytes that come one by one make the same batches")
{
    bed in{listening({.batch_size = 3})};
    sender from{in.where()};
    for (frame const& each :
         {frame{.rows = 2, .crc = true}, frame{.sequence = 1, .first_row = 2, .rows = 4, .last = true}}) {
        for (auto const byte : each.bytes()) {
            from.send(std::span{&byte, 1});
            in.io.poll();
            in.io.restart();
        }
    }
    CHECK(in.rest() == rows_from(0, 0, 6));
}

TEST_CASE("while no batch is requested the senders are stopped, memory is bounded, and nothing is lost")
{
    bed in{listening({.sources = 2, .batch_size = 100, .queue_depth = 3})};
    constexpr std::uint64_t rows_each = 1000;
    constexpr std::uint64_t frames = 1000;  // of 20 kB
    std::array<std::atomic<std::uint64_t>, 2> sent{};
    std::vector<std::jthread> threads;
    for (std::uint32_t source = 0; source < 2; ++source) {
        threads.emplace_back([&sent, source, where = in.where()] {
            sender to{where};
            for (std::uint64_t i = 0; i < frames; ++i, ++sent[source])
                to.send({.source = source, .sequence = i, .first_row = i * rows_each, .rows = rows_each});
            to.send({.source = source, .sequence = frames, .last = true});
        });
    }
    std::uint64_t before = 0;
    REQUIRE(in.soon([&] {
        before = sent[0] + sent[1];
        in.run_for(100ms);
        return before > 0 && sent[0] + sent[1] == before;
    }));
    CHECK(before < 2 * frames);
    auto const batch_bytes = 100 * 20 + 256;
    CHECK(in.stream->stats().memory <= 2 * 20'000 + 3 * batch_bytes);
    auto const all = in.rest();
    for (std::uint32_t source = 0; source < 2; ++source)
        CHECK(rows_of_source(all, source) == rows_from(source, 0, frames * rows_each));
    // One more batch at a time was in the test's hands.
    CHECK(in.stream->stats().memory_high_water <= 2 * 20'000 + 5 * batch_bytes);
}

TEST_CASE("a program may keep all batches, and their memory goes when it does not any more")
{
    bed in{listening({.batch_size = 2, .queue_depth = 1})};
    sender from{in.where()};
    from.send({.rows = 100});
    std::vector<std::shared_ptr<next_result>> kept;
    for (std::uint64_t i = 0; i < 50; ++i) {
        kept.push_back(in.next());
        REQUIRE_FALSE(kept.back()->code);
    }
    for (std::uint64_t i = 0; i < 50; ++i)
        CHECK(rows_of(kept[i]->got) == rows_from(0, 2 * i, 2));
    auto const batch_bytes = 256 + 2 * 8;
    CHECK(in.stream->stats().memory >= 50U * batch_bytes);
    kept.clear();
    from.send({.sequence = 1, .first_row = 100, .rows = 100});
    for (std::uint64_t i = 50; i < 100; ++i)
        CHECK(in.next_rows() == rows_from(0, 2 * i, 2));
    CHECK(in.stream->stats().memory <= 100 * 20 + 3U * batch_bytes);
}

TEST_CASE("connections of a thread pool are received in parallel, and no row is lost or doubled")
{
    constexpr std::uint32_t sources = 6;
    constexpr std::uint64_t frames = 50;
    rx_session session{{.transport = transport::copy, .max_flows = sources}, device_memory::on_host(8 << 20)};
    asio::thread_pool pool{3};
    tensor_stream stream{pool.get_executor(), session, listening({.sources = sources, .batch_size = 64})};
    std::vector<std::jthread> threads;
    for (std::uint32_t source = 0; source < sources; ++source) {
        threads.emplace_back([source, where = stream.local_endpoints()[0]] {
            sender to{where};
            send_all(to, source, frames, 100 + source);
        });
    }
    std::map<std::uint32_t, std::uint64_t> next_row;
    for (std::uint64_t seen = 0; seen < frames * (6 * 100 + 15);) {
        auto const got = stream.async_next(asio::use_future).get();
        for (auto const& each : rows_of(got)) {
            REQUIRE(each.number == next_row[each.source]++);
            ++seen;
        }
    }
    CHECK_THROWS_AS(stream.async_next(asio::use_future).get(), boost::system::system_error);
    CHECK(stream.errors().empty());
    threads.clear();
    pool.join();
}

}  // namespace gpurx::ingest::test
