// SPDX-License-Identifier: Apache-2.0
//
// Senders that break off, come again, or send what they should not: named, and no harm to the others.
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <cstring>

#include "bed.hpp"

namespace gpurx::ingest::test {

namespace {

// A frame of which some bytes are others.
template <class T>
std::vector<std::byte> patched(frame const& what, std::size_t offset, T value)
{
    auto bytes = what.bytes();
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    return bytes;
}

// Offsets in a head.
constexpr std::size_t rows_at = 24;
constexpr std::size_t payload_size_at = 32;
constexpr std::size_t shape_at = 72;
constexpr std::uint64_t huge = std::uint64_t{1} << 63;

// Source 1 sends three frames that must come through, whatever happened to the others.
void check_others_go_on(bed& in)
{
    sender good{in.where()};
    for (std::uint64_t i = 0; i < 3; ++i)
        good.send({.source = 1, .sequence = i, .first_row = 4 * i, .rows = 4, .last = i == 2});
    for (std::uint64_t row = 0; row < 12; row += 4)
        CHECK(in.next_rows() == rows_from(1, row, 4));
}

tensor_stream_options two_sources(tensor_stream_options options = {})
{
    options.sources = 2;
    options.batch_size = 4;
    return listening(std::move(options));
}

}  // namespace

TEST_CASE("a source that is cut in the middle of a tensor goes on where it was, and nothing is lost or doubled")
{
    auto const reset = GENERATE(false, true);
    bed in{two_sources()};
    sender first{in.where()};
    first.send({.rows = 4, .ack = true});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    CHECK(in.ack_of(first) == 0);
    frame const second{.sequence = 1, .first_row = 4, .rows = 8, .ack = true, .crc = true};
    auto const bytes = second.bytes();
    first.send(std::span{bytes}.first(bytes.size() - 30));
    in.run_for(20ms);
    if (reset)
        first.reset();
    else
        first.close();
    in.run_for(20ms);
    sender again{in.where()};
    again.send({.rows = 4, .ack = true});  // it does not know what arrived
    again.send(second);
    again.send({.sequence = 2, .first_row = 12, .rows = 4, .last = true});
    CHECK(in.next_rows() == rows_from(0, 4, 4));
    CHECK(in.next_rows() == rows_from(0, 8, 4));
    CHECK(in.next_rows() == rows_from(0, 12, 4));
    CHECK(in.ack_of(again) == 0);
    CHECK(in.ack_of(again) == 1);
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
    CHECK(in.stream->errors().empty());
    CHECK(in.stream->stats().duplicates == 1);
}

TEST_CASE("a source that is cut and does not come back ends by name, with what was whole delivered")
{
    auto const timeout = GENERATE(0ms, 50ms);
    bed in{two_sources({.reconnect_timeout = timeout})};
    std::optional<sender> cut{in.where()};
    auto const port = cut->socket().local_endpoint().port();
    cut->send({.rows = 4});
    auto const half = frame{.sequence = 1, .first_row = 4, .rows = 4}.bytes();
    cut->send(std::span{half}.first(half.size() / 2));
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    cut.reset();
    REQUIRE(in.soon([&] { return errors_of(in, 0).size() == 1; }));
    auto const errors = errors_of(in, 0);
    CHECK(errors[0].code == errc::stream_cut);
    CHECK(errors[0].peer.port() == port);
    CHECK(describe(errors[0].code, errors[0].why) ==
          "receive frames of source 0 at 127.0.0.1:" + std::to_string(port) +
              ": the sender's stream ended before its last frame; after 1 frames: End of file");
    sender late{in.where()};
    late.send({.sequence = 1, .rows = 4});
    in.run_for(20ms);
    CHECK(in.refuses(late));
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
    REQUIRE(in.soon([&] { return in.stream->errors().size() == 2; }));
    CHECK(in.stream->errors()[1].why.advice == "source 0 has failed before, and is not accepted again");
}

TEST_CASE("a sender that stops sending is given up by name, at any place in a frame")
{
    auto const stops_at = GENERATE(std::size_t{0}, std::size_t{20}, detail::frame_start_size + 1, std::size_t{250});
    CAPTURE(stops_at);
    bed in{two_sources({.reconnect_timeout = 50ms, .stall_timeout = 100ms})};
    sender stuck{in.where()};
    stuck.send({.rows = 4});
    auto const next = frame{.sequence = 1, .first_row = 4, .rows = 4}.bytes();
    stuck.send(std::span{next}.first(stops_at));
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    REQUIRE(in.soon([&] { return errors_of(in, 0).size() == 1; }));
    auto const error = errors_of(in, 0)[0];
    CHECK(error.code == errc::stream_cut);
    CHECK(error.peer == stuck.socket().local_endpoint());
    CHECK(error.why.advice ==
          "after 1 frames: its connection is open, but no byte came for 100 ms (stall_timeout): it is stuck, or slow");
    CHECK(in.refuses(stuck));
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
}

TEST_CASE("a sender that was stuck, and comes again, loses nothing")
{
    bed in{two_sources({.stall_timeout = 100ms})};
    sender stuck{in.where()};
    stuck.send({.rows = 4});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    CHECK(in.refuses(stuck));
    sender again{in.where()};
    again.send({.sequence = 1, .first_row = 4, .rows = 4, .last = true});
    CHECK(in.next_rows() == rows_from(0, 4, 4));
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
    CHECK(in.stream->errors().empty());
}

TEST_CASE("a sender that waits for the receiver, or is slow, is not stuck")
{
    bed in{two_sources({.queue_depth = 1, .reconnect_timeout = 0ms, .stall_timeout = 300ms})};
    sender slow{in.where()};
    for (std::uint64_t i = 0; i < 4; ++i)
        slow.send({.sequence = i, .first_row = 4 * i, .rows = 4});
    in.run_for(700ms);  // its frames wait for room
    for (std::uint64_t row = 0; row < 16; row += 4)
        CHECK(in.next_rows() == rows_from(0, row, 4));
    auto const bytes = frame{.sequence = 4, .first_row = 16, .rows = 4, .last = true}.bytes();
    for (std::size_t at = 0; at < bytes.size(); at += 16) {
        slow.send(std::span{bytes}.subspan(at, std::min<std::size_t>(16, bytes.size() - at)));
        in.run_for(50ms);
    }
    CHECK(in.next_rows() == rows_from(0, 16, 4));
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
    CHECK(in.stream->errors().empty());
}

TEST_CASE("a silent connection is closed after a while, without an error of a source")
{
    bed in{two_sources({.stall_timeout = 100ms})};
    sender silent{in.where()};
    CHECK(in.refuses(silent));
    check_others_go_on(in);
    CHECK(in.stream->errors().empty());
}

TEST_CASE("a source that is connected to, and accepts but never sends, does not hold up the end")
{
    asio::io_context io;
    tcp::acceptor stuck{io, {asio::ip::address_v4::loopback(), 0}};
    tcp::acceptor good{io, {asio::ip::address_v4::loopback(), 0}};
    bed in{{.connect = {stuck.local_endpoint(), good.local_endpoint()}, .batch_size = 4, .stall_timeout = 100ms}};
    sender other;
    in.accept(good, other);
    other.send({.source = 1, .rows = 4, .last = true});
    CHECK(in.next_rows() == rows_from(1, 0, 4));
    CHECK(in.next()->code == asio::error::eof);
    REQUIRE(errors_of(in, 0).size() == 1);
    CHECK(errors_of(in, 0)[0].code == errc::stream_cut);
}

TEST_CASE("in rounds, a source that never comes, or dies, holds up the others only so long")
{
    bed in{two_sources({.order = frame_order::rounds, .start_timeout = 50ms, .reconnect_timeout = 50ms})};
    auto const never = GENERATE(false, true);
    if (!never)
        sender{in.where()}.send({.rows = 4});
    sender good{in.where()};
    good.send({.source = 1, .rows = 4});
    good.send({.source = 1, .sequence = 1, .first_row = 4, .rows = 4, .last = true});
    if (!never)
        CHECK(in.next_rows() == rows_from(0, 0, 4));
    CHECK(in.next_rows() == rows_from(1, 0, 4));
    CHECK(in.next_rows() == rows_from(1, 4, 4));
    CHECK(in.next()->code == asio::error::eof);
    auto const errors = errors_of(in, 0);
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].code == errc::stream_cut);
    if (never)
        CHECK(errors[0].why.advice == "no connection came");
}

TEST_CASE("a payload that its CRC32C does not fit ends its source, and none of it is delivered")
{
    bed in{two_sources()};
    sender bad{in.where()};
    bad.send({.rows = 4, .crc = true});
    auto wrong = frame{.sequence = 1, .first_row = 4, .rows = 4, .ack = true, .crc = true}.bytes();
    wrong.back() ^= std::byte{1};
    bad.send(wrong);
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    REQUIRE(in.soon([&] { return errors_of(in, 0).size() == 1; }));
    auto const errors = errors_of(in, 0);
    CHECK(errors[0].code == errc::wrong_checksum);
    CHECK(errors[0].why.advice.starts_with("the CRC32C of the payload of frame 1 is 0x"));
    CHECK(in.refuses(bad));
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
}

TEST_CASE("a source's frame that is none ends it, and the others go on")
{
    frame const next{.sequence = 1, .first_row = 4, .rows = 4};
    frame const checked{.sequence = 1, .first_row = 4, .rows = 4, .crc = true};
    auto other_type = next.head();
    other_type.tensors[0].type = dtype::i32;
    auto fewer = next.head();
    fewer.tensors.pop_back();
    struct fault {
        std::vector<std::byte> bytes;
        std::string advice;
        errc code = errc::bad_frame;
    };
    auto const faults = std::vector<fault>{
        {patched(next, 0, 'G'), R"(it begins with "GpTS", not with "gpTS")"},
        {patched(next, 4, '\2'), "its version is 2, not 1"},
        {patched(next, rows_at, huge), "the size of its 9223372036854775808 rows overflows 64 bits"},
        {patched(next, payload_size_at, huge), "its payload has 9223372036854775808 bytes, more than 268435456"},
        {patched(next, shape_at, huge), "the size of a row of tensor x overflows 64 bits"},
        {patched(next, 12, ~std::uint32_t{0}), "it has 4294967295 tensors, more than 64"},
        {patched(next, 8, 1U), "frame 1 belongs to source 1"},
        {patched(next, 16, std::uint64_t{2}), "frame 2 came in the place of frame 1"},
        {patched(next, 16, huge), "frame 9223372036854775808 came in the place of frame 1"},
        {encode(other_type), "frame 1 has tensor x I32 [3] where the stream has x F32 [3]"},
        {encode(fewer), "frame 1 has 1 tensors, and the stream has 2"},
        {patched(checked, 24, std::uint64_t{4} + 256), "", errc::wrong_checksum},
    };
    auto const& [bytes, advice, code] = faults[GENERATE(Catch::Generators::range(0, 12))];
    CAPTURE(advice);
    std::vector<source_error> told;
    bed in{two_sources({.on_error = [&told](source_error const& error) { told.push_back(error); }})};
    sender bad{in.where()};
    bad.send({.rows = 4});
    bad.send(bytes);
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    REQUIRE(in.soon([&] { return told.size() == 1; }));
    CHECK(told[0].source == 0U);
    CHECK(told[0].code == code);
    CHECK(told[0].peer == bad.socket().local_endpoint());
    if (!advice.empty())
        CHECK(told[0].why.advice == advice);
    CHECK(in.refuses(bad));
    CHECK(in.stream->stats().memory < 10'000);
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
}

TEST_CASE("a peer that is not a sender is recognized, and does not become a source")
{
    bed in{two_sources()};
    sender stranger{in.where()};
    std::string_view const text = "GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: everything\r\n\r\n";
    stranger.send(std::as_bytes(std::span{text}));
    {
        sender const says_nothing{in.where()};
    }
    sender other_rank{in.where()};
    other_rank.send({.source = 2, .rows = 4});
    CHECK(in.refuses(stranger));
    CHECK(in.refuses(other_rank));
    REQUIRE(in.soon([&] { return errors_of(in, std::nullopt).size() == 2; }));
    auto const errors = errors_of(in, std::nullopt);
    CHECK(errors[0].code == errc::bad_frame);
    CHECK(errors[0].why.object == "from 127.0.0.1:" + std::to_string(stranger.socket().local_endpoint().port()));
    CHECK(errors[1].why.advice ==
          "source 2 does not belong to rank 0 of 1: there are fewer sources, or another process receives it");
    check_others_go_on(in);
    sender zero{in.where()};
    zero.send({.rows = 4, .last = true});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    CHECK(in.next()->code == asio::error::eof);
}

TEST_CASE("options may set the tensors, so that no first frame sets wrong ones")
{
    bed in{two_sources({.tensors = row_tensors()})};
    sender bad{in.where()};
    auto head = frame{.rows = 4}.head();
    head.tensors[0].row_shape = {4};
    bad.send(encode(head));
    REQUIRE(in.soon([&] { return errors_of(in, 0).size() == 1; }));
    CHECK(errors_of(in, 0)[0].why.advice == "frame 0 has tensor x F32 [4] where the stream has x F32 [3]");
    check_others_go_on(in);
}

TEST_CASE("a wrong first frame does not set the tensors")
{
    bed in{two_sources()};
    sender bad{in.where()};
    auto head = frame{.rows = 4}.head();
    head.tensors[0].type = dtype::u32;
    head.has_crc = true;
    head.payload_crc = 1;
    auto bytes = encode(head);
    bytes.resize(bytes.size() + head.payload_size());
    bad.send(bytes);
    REQUIRE(in.soon([&] { return errors_of(in, 0).size() == 1; }));
    CHECK(errors_of(in, 0)[0].code == errc::wrong_checksum);
    check_others_go_on(in);
}

TEST_CASE("rows of which a batch would be too large are refused before there is memory for them")
{
    bed in{two_sources({.max_batch_size = 100})};
    sender bad{in.where()};
    bad.send({.rows = 1});
    REQUIRE(in.soon([&] { return errors_of(in, 0).size() == 1; }));
    CHECK(errors_of(in, 0)[0].why.advice ==
          "a batch of 4 such rows has more than 100 bytes: raise tensor_stream_options::max_batch_size, or lower "
          "batch_size");
}

TEST_CASE("a sender that comes again while its old connection seems alive takes its place")
{
    bed in{two_sources()};
    sender old{in.where()};
    old.send({.rows = 4});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    auto const half = frame{.sequence = 1, .first_row = 4, .rows = 4}.bytes();
    old.send(std::span{half}.first(half.size() - 1));
    in.run_for(10ms);
    sender now{in.where()};
    now.send({.sequence = 1, .first_row = 4, .rows = 4, .last = true});
    CHECK(in.next_rows() == rows_from(0, 4, 4));
    CHECK(in.refuses(old));
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
    CHECK(in.stream->errors().empty());
}

TEST_CASE("a source whose last acknowledgement was lost gets it when it comes again")
{
    bed in{two_sources()};
    frame const last{.rows = 4, .last = true, .ack = true};
    {
        sender first{in.where()};
        first.send(last);
        CHECK(in.next_rows() == rows_from(0, 0, 4));
    }
    sender again{in.where()};
    again.send(last);
    in.run_for(20ms);
    CHECK(in.ack_of(again) == 0);
    CHECK(in.refuses(again));
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
    CHECK(in.stream->errors().empty());
    CHECK(in.stream->stats().duplicates == 1);
}

TEST_CASE("a second sender of the same number is refused and told apart, whenever it comes, and the first goes on")
{
    enum class first { sends, was_cut, has_ended };
    auto const state = GENERATE(first::sends, first::was_cut, first::has_ended);
    bed in{two_sources()};
    sender one{in.where()};
    one.send({.rows = 4, .last = state == first::has_ended, .begins = true});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    auto const port = one.socket().local_endpoint().port();
    if (state == first::was_cut) {
        one.close();
        in.run_for(10ms);
    }
    sender two{in.where()};
    two.send({.rows = 4, .begins = true});
    CHECK(in.refuses(two));
    auto const errors = errors_of(in, std::nullopt);
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].code == errc::wrong_source);
    CHECK(errors[0].peer == two.socket().local_endpoint());
    CHECK(errors[0].why.advice ==
          "source 0 already came from 127.0.0.1:" + std::to_string(port) +
              ", which has sent 1 frames: give each sender its own number; a restarted sender must resume (in Python: "
              "resume=True)");
    if (state == first::was_cut)
        sender{in.where()}.send({.sequence = 1, .first_row = 4, .rows = 4, .last = true});
    else if (state == first::sends)
        one.send({.sequence = 1, .first_row = 4, .rows = 4, .last = true});
    if (state != first::has_ended)
        CHECK(in.next_rows() == rows_from(0, 4, 4));
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
    CHECK(errors_of(in, 0).empty());
    CHECK(in.stream->stats().duplicates == 0);
}

TEST_CASE("a sender whose first frame did not arrive whole may begin again")
{
    bed in{two_sources()};
    {
        sender first{in.where()};
        auto const bytes = frame{.rows = 4, .begins = true}.bytes();
        first.send(std::span{bytes}.first(bytes.size() - 1));
        in.run_for(10ms);
    }
    in.run_for(10ms);
    sender again{in.where()};
    again.send({.rows = 4, .last = true, .begins = true});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    check_others_go_on(in);
    CHECK(in.next()->code == asio::error::eof);
    CHECK(in.stream->errors().empty());
}

TEST_CASE("a sender of a number that is none is not forgotten over any number of strangers")
{
    bed in{two_sources()};
    sender lost{in.where()};
    lost.send({.source = 2, .rows = 4, .begins = true});
    CHECK(in.refuses(lost));
    for (int i = 0; i < 70; ++i) {
        sender stranger{in.where()};
        stranger.send(std::as_bytes(std::span{"GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: everything\r\n\r\n"}));
        CHECK(in.refuses(stranger));
    }
    auto const errors = errors_of(in, std::nullopt);
    CHECK(errors.size() == 64);
    CHECK(std::ranges::count(errors, error_code{errc::wrong_source}, &source_error::code) == 1);
}

TEST_CASE("a hundred silent connections do not delay the others")
{
    bed in{two_sources(), 110};
    std::vector<std::unique_ptr<sender>> idle;
    for (int i = 0; i < 100; ++i) {
        idle.push_back(std::make_unique<sender>(in.where()));
        in.io.poll();
        in.io.restart();
    }
    check_others_go_on(in);
    CHECK(in.stream->stats().memory < 10'000);
    sender zero{in.where()};
    zero.send({.rows = 4, .last = true});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    CHECK(in.next()->code == asio::error::eof);
    in.run_for(20ms);
    CHECK(in.refuses(*idle.front()));
    CHECK(in.refuses(*idle.back()));
    CHECK(in.stream->errors().empty());
}

TEST_CASE("one connection more than max_flows is refused, and reported")
{
    bed in{two_sources(), 2};
    sender a{in.where()};
    sender b{in.where()};
    a.send({.source = 0, .rows = 4});
    b.send({.source = 1, .rows = 4});
    CHECK(in.next_rows().size() == 4);
    CHECK(in.next_rows().size() == 4);
    sender c{in.where()};
    CHECK(in.refuses(c));
    auto const errors = errors_of(in, std::nullopt);
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].code == gpurx::errc::too_many_flows);
    CHECK(errors[0].peer == c.socket().local_endpoint());
}

TEST_CASE("the oldest silent connection makes place for a new one")
{
    bed in{two_sources(), 3};
    sender good{in.where()};
    good.send({.source = 1, .rows = 4});
    CHECK(in.next_rows() == rows_from(1, 0, 4));
    std::vector<std::unique_ptr<sender>> idle;
    for (int i = 0; i < 20; ++i) {
        idle.push_back(std::make_unique<sender>(in.where()));
        in.run_for(2ms);
    }
    sender half_spoken{in.where()};
    half_spoken.send(std::as_bytes(std::span{"GET /"}));
    sender zero{in.where()};
    zero.send({.rows = 4});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    for (auto const& each : idle)
        CHECK(in.refuses(*each));
    sender const other{in.where()};
    CHECK(in.refuses(half_spoken));
    zero.send({.sequence = 1, .last = true});
    good.send({.source = 1, .sequence = 1, .first_row = 4, .rows = 4, .last = true});
    CHECK(in.next_rows() == rows_from(1, 4, 4));
    CHECK(in.next()->code == asio::error::eof);
    CHECK(errors_of(in, 0).empty());
    CHECK(errors_of(in, 1).empty());
    auto const errors = errors_of(in, std::nullopt);
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].peer == half_spoken.socket().local_endpoint());
    CHECK(errors[0].why.advice == "it had not yet announced its source, and another connection needed its flow");
}

TEST_CASE("the error of a missing source lists the peers that came in its place")
{
    bed in{two_sources({.start_timeout = 300ms})};
    std::optional<sender> gone{in.where()};
    in.run_for(5ms);
    gone.reset();
    in.run_for(5ms);
    sender stranger{in.where()};
    std::string_view const text = "GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: everything\r\n\r\n";
    stranger.send(std::as_bytes(std::span{text}));
    CHECK(in.refuses(stranger));
    sender const idle{in.where()};
    sender const as_idle{in.where()};
    sender one{in.where()};
    one.send({.source = 1, .rows = 4, .last = true});
    CHECK(in.rest() == rows_from(1, 0, 4));
    REQUIRE(errors_of(in, 0).size() == 1);
    CHECK(errors_of(in, 0)[0].why.advice ==
          "no connection came; connections of other peers: 2, the last from 127.0.0.1:" +
              std::to_string(stranger.socket().local_endpoint().port()) +
              R"(: it begins with "GET ", not with "gpTS"; open connections without a source so far: 2)");
}

}  // namespace gpurx::ingest::test
