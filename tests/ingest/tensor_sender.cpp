// SPDX-License-Identifier: Apache-2.0
//
// tensor_sender to tensor_stream, in one process: each frame arrives once, whatever becomes of connections.
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstring>
#include <functional>
#include <gpurx/ingest/tensor_sender.hpp>
#include <string>

#include "bed.hpp"
#include "descriptors.hpp"
#include "stream/hello.hpp"

namespace gpurx::ingest::test {

namespace {

using Catch::Matchers::ContainsSubstring;
using detail::encode_ack;

constexpr char shared_secret[] = "known to both of them";
constexpr std::uint64_t frame_size = 48 + 2 * 80 + 4 * 20;  // of 4 rows, with its head

std::string text_of(tcp::endpoint const& where)
{
    return where.address().to_string() + ":" + std::to_string(where.port());
}

// Rows of one frame, and the bytes that its views name.
struct rows_to_send {
    rows_to_send(std::uint32_t source, std::uint64_t first, std::uint64_t rows)
        : bytes{std::make_shared<std::vector<std::byte>>(
              frame{.source = source, .first_row = first, .rows = rows}.payload())},
          views{{{row_tensors()[0], std::span{*bytes}.first(12 * rows)},
                 {row_tensors()[1], std::span{*bytes}.subspan(12 * rows)}}}
    {}
    std::shared_ptr<std::vector<std::byte>> bytes;
    std::array<tensor_view, 2> views;
};

rows_to_send frame_4(std::uint64_t number, std::uint32_t source = 0)
{
    return {source, 4 * number, 4};
}

struct outcome {
    bool done = false;
    error_code code;
};

// A handler that notes the outcome.
auto noting(std::shared_ptr<outcome> const& result)
{
    return [result](error_code code) {
        REQUIRE_FALSE(result->done);
        *result = {true, code};
    };
}

error_code code_of(bed& in, std::shared_ptr<outcome> const& result)
{
    in.run_until([&] { return result->done; });
    return result->code;
}

// Begins an operation, and runs until it has completed.
template <class Start>
error_code done(bed& in, Start start)
{
    auto const result = std::make_shared<outcome>();
    start(noting(result));
    return code_of(in, result);
}

error_code send_4(bed& in, tensor_sender& by, std::uint64_t number, std::uint32_t source = 0)
{
    return done(in, [&](auto handler) { by.async_send(frame_4(number, source).views, handler); });
}
error_code flush(bed& in, tensor_sender& by)
{
    return done(in, [&](auto handler) { by.async_flush(handler); });
}
error_code greet(bed& in, tensor_sender& by)
{
    return done(in, [&](auto handler) { by.async_greet(handler); });
}
error_code close(bed& in, tensor_sender& by)
{
    return done(in, [&](auto handler) { by.async_close(handler); });
}

tensor_sender sender_to(bed& in, tensor_sender_options options = {})
{
    options.address = text_of(in.where());
    return {in.io, std::move(options)};
}

// What goes through it is cut off: connection i after so many bytes of either direction; 0: not at all.
class cuts {
  public:
    using fate = std::function<std::uint64_t(unsigned)>;

    cuts(asio::io_context& io, tcp::endpoint to, fate after) : acceptor_{io, {asio::ip::address_v4::loopback(), 0}}
    {
        asio::co_spawn(io, accept(acceptor_, to, std::move(after)), asio::detached);
    }
    [[nodiscard]] std::string address() const { return text_of(acceptor_.local_endpoint()); }

  private:
    struct pair {
        tcp::socket near;
        tcp::socket far;
        std::uint64_t left;
        bool is_endless;

        void cut()
        {
            for (auto* each : {&near, &far}) {
                error_code ignored;
                each->set_option(asio::socket_base::linger{true, 0}, ignored);
                each->close(ignored);
            }
        }
    };

    static asio::awaitable<void> relay(std::shared_ptr<pair> of, tcp::socket& from, tcp::socket& to)
    {
        constexpr auto outcome = asio::as_tuple(asio::use_awaitable);
        std::array<std::byte, 65536> bytes{};
        for (;;) {
            auto const [code, size] = co_await from.async_read_some(asio::buffer(bytes), outcome);
            auto const passes = of->is_endless ? size : std::min<std::uint64_t>(size, of->left);
            of->left -= of->is_endless ? 0 : passes;
            auto const [failure, written] = co_await asio::async_write(to, asio::buffer(bytes, passes), outcome);
            if (code || failure || passes < size)
                co_return of->cut();
        }
    }
    static asio::awaitable<void> accept(tcp::acceptor& acceptor, tcp::endpoint to, fate after)
    {
        auto const io = acceptor.get_executor();
        for (unsigned number = 0;; ++number) {
            auto near = co_await acceptor.async_accept(asio::use_awaitable);
            tcp::socket far{io};
            co_await far.async_connect(to, asio::use_awaitable);
            auto const limit = after(number);
            auto const of = std::make_shared<pair>(pair{std::move(near), std::move(far), limit, limit == 0});
            asio::co_spawn(io, relay(of, of->near, of->far), asio::detached);
            asio::co_spawn(io, relay(of, of->far, of->near), asio::detached);
        }
    }

    tcp::acceptor acceptor_;
};

asio::awaitable<void> send_rows(tensor_sender& by, std::uint64_t rows, std::uint32_t source = 0)
{
    for (std::uint64_t first = 0, count = 1; first < rows; first += count, count = count % 9 + 1) {
        rows_to_send const next{source, first, std::min(count, rows - first)};
        co_await by.async_send(next.views, next.bytes);
    }
    co_await by.async_close();
}

// The rows of a stream whose senders are these coroutines.
std::vector<row> rows_sent(bed& in, std::vector<asio::awaitable<void>> senders)
{
    std::size_t ended = 0;
    auto const count = senders.size();
    for (auto& each : senders)
        asio::co_spawn(in.io, std::move(each), [&](std::exception_ptr const& failure) {
            if (failure)
                std::rethrow_exception(failure);
            ++ended;
        });
    auto rows = in.rest();
    in.run_until([&] { return ended == count; });
    return rows;
}

template <class... Coroutines>
std::vector<asio::awaitable<void>> all_of(Coroutines... each)
{
    std::vector<asio::awaitable<void>> all;
    (all.push_back(std::move(each)), ...);
    return all;
}

// Listens, and answers what a test says.
class answering {
  public:
    explicit answering(bed& in) : in_{in}, acceptor_{in.io, {asio::ip::address_v4::loopback(), 0}}, socket_{in.io}
    {
        acceptor_.non_blocking(true);
    }
    [[nodiscard]] std::string address() const { return text_of(acceptor_.local_endpoint()); }
    // Once so much has come.
    void answer(std::size_t after, std::span<std::byte const> bytes)
    {
        in_.run_until([&] { return accept() && socket_.available() >= after; });
        asio::write(socket_, asio::buffer(bytes.data(), bytes.size()));
    }
    [[nodiscard]] std::vector<std::byte> read(std::size_t size)
    {
        in_.run_until([&] { return socket_.available() >= size; });
        std::vector<std::byte> bytes(size);
        asio::read(socket_, asio::buffer(bytes));
        return bytes;
    }
    [[nodiscard]] std::size_t available() { return socket_.available(); }
    void close() { socket_.close(); }

  private:
    bool accept()
    {
        error_code code;
        if (!socket_.is_open())
            acceptor_.accept(socket_, code);
        return socket_.is_open();
    }
    bed& in_;
    tcp::acceptor acceptor_;
    tcp::socket socket_;
};

// The number of the frame that begins there.
std::uint64_t sequence_at(std::vector<std::byte> const& start)
{
    std::uint64_t sequence = 0;
    CHECK(detail::count_tensors(std::span{start}.first<detail::frame_start_size>()) > 0);
    std::memcpy(&sequence, start.data() + 16, sizeof sequence);
    return sequence;
}

}  // namespace

TEST_CASE("a sender's frames arrive once each, in their order, and its close ends the stream")
{
    bed in{listening({.batch_size = 7, .queue_depth = 4})};
    auto sender = sender_to(in);
    CHECK(rows_sent(in, all_of(send_rows(sender, 100))) == rows_from(0, 0, 100));
    CHECK(sender.acknowledged() == sender.next_frame());
    CHECK(sender.stats().frames == sender.next_frame());
    CHECK(sender.stats().connections == 1);
    CHECK(in.stream->errors().empty());
    CHECK(close(in, sender) == error_code{});
    CHECK(send_4(in, sender, 0) == asio::error::shut_down);
}

TEST_CASE("a sender's frames arrive once each wherever its connections are cut")
{
    auto const acknowledge = GENERATE(acknowledge_when::received, acknowledge_when::taken);
    bed in{listening({.sources = 2, .batch_size = 7, .queue_depth = 4, .acknowledge = acknowledge}), 32};
    cuts way{in.io, in.where(), [](unsigned number) -> std::uint64_t {
                 return number < 40 ? 1 + 61 * number % 2000 + 13 * number * number % 700 : 0;
             }};
    tensor_sender zero{in.io, {.address = way.address(), .reconnect_timeout = 10min}};
    tensor_sender one{in.io, {.address = way.address(), .source = 1, .reconnect_timeout = 10min}};
    auto const rows = rows_sent(in, all_of(send_rows(zero, 500, 0), send_rows(one, 500, 1)));
    for (std::uint32_t const source : {0U, 1U}) {
        auto of_source = rows;
        std::erase_if(of_source, [&](row const& each) { return each.source != source; });
        CHECK(of_source == rows_from(source, 0, 500));
        CHECK(errors_of(in, source).empty());
    }
    CHECK(zero.stats().connections + one.stats().connections >= 20);
}

TEST_CASE("a sender and a stream know one secret, and a sender with another one is refused")
{
    struct example {
        std::string here;
        std::string there;
        char const* advice;
    };
    auto const [here, there, advice] =
        GENERATE(example{shared_secret, shared_secret, nullptr},
                 example{shared_secret, "", "it requires a secret, and this sender has none"},
                 example{shared_secret, "some other secret of theirs", "it has another secret"},
                 example{"", shared_secret, "it has no secret, and this sender has one"});
    bed in{listening({.batch_size = 4, .secret = here})};
    auto sender = sender_to(in, {.secret = there});
    auto const code = send_4(in, sender, 0);
    if (advice == nullptr) {
        CHECK(code == error_code{});
        CHECK(in.next_rows() == rows_from(0, 0, 4));
        return;
    }
    CHECK(code == errc::wrong_secret);
    CHECK(sender.why().advice == advice);
    CHECK(sender.why().object == "frame 0 of source 0 to " + text_of(in.where()));
    CHECK(send_4(in, sender, 0) == errc::wrong_secret);
    CHECK(sender.next_frame() == 0);
}

TEST_CASE("a receiver that does not prove the secret gets no rows")
{
    bed in{listening()};
    answering impostor{in};
    tensor_sender sender{in.io, {.address = impostor.address(), .secret = shared_secret}};
    auto const result = std::make_shared<outcome>();
    sender.async_send(frame_4(0).views, noting(result));
    auto const challenges = GENERATE(false, true);
    if (challenges)
        impostor.answer(48, encode(detail::challenge{}));
    impostor.answer(challenges ? 80 : 48, encode(detail::welcome{}));
    CHECK(code_of(in, result) == errc::wrong_secret);
    CHECK_THAT(sender.why().advice, ContainsSubstring("does not prove that it has the secret"));
    CHECK(impostor.available() == (challenges ? 80 : 48));
}

TEST_CASE("an answer that is none of the protocol ends the sender")
{
    bed in{listening()};
    answering other{in};
    tensor_sender sender{in.io, {.address = other.address()}};
    auto const result = std::make_shared<outcome>();
    sender.async_greet(noting(result));
    other.answer(48, std::vector<std::byte>(64, std::byte{'x'}));
    CHECK(code_of(in, result) == boost::system::errc::protocol_error);
    CHECK_THAT(sender.why().advice, ContainsSubstring("its answer is not of the protocol"));
}

TEST_CASE("a sender goes on with the frame that the receiver expects, after a cut within an acknowledgement")
{
    bed in{listening()};
    answering receiver{in};
    tensor_sender sender{in.io, {.address = receiver.address()}};
    auto const first = std::make_shared<outcome>();
    sender.async_send(frame_4(0).views, noting(first));
    receiver.answer(48, encode(detail::welcome{}));
    CHECK(code_of(in, first) == error_code{});
    for (std::uint64_t i = 1; i < 3; ++i)
        CHECK(send_4(in, sender, i) == error_code{});
    CHECK(receiver.read(48 + 3 * frame_size).size() == 48 + 3 * frame_size);
    auto const flushed = std::make_shared<outcome>();
    sender.async_flush(noting(flushed));
    auto const half = encode_ack(0);
    receiver.answer(0, std::span{half}.first(4));
    in.run_for(10ms);
    receiver.close();
    receiver.answer(48, encode(detail::welcome{.expected = 2, .acknowledged = 1}));
    CHECK(receiver.read(48).size() == 48);
    CHECK(sequence_at(receiver.read(frame_size)) == 2);
    CHECK(receiver.available() == 0);
    receiver.answer(0, encode_ack(1));
    in.run_for(10ms);
    CHECK_FALSE(flushed->done);
    receiver.answer(0, encode_ack(2));
    CHECK(code_of(in, flushed) == error_code{});
    CHECK(sender.acknowledged() == 3);
    CHECK(sender.stats().connections == 2);
}

TEST_CASE("a frame that was cut in its middle is sent from its begin")
{
    bed in{listening()};
    answering receiver{in};
    tensor_sender sender{in.io, {.address = receiver.address()}};
    auto const bytes = std::make_shared<std::vector<std::byte>>(64 << 20);  // more than the sockets hold
    auto const result = std::make_shared<outcome>();
    sender.async_send(std::array{tensor_view{{"x", dtype::u8, {}}, *bytes}}, bytes, noting(result));
    for (auto cut = 0; cut < 2; ++cut) {
        receiver.answer(48, encode(detail::welcome{}));
        CHECK(receiver.read(48).size() == 48);
        CHECK(sequence_at(receiver.read(128)) == 0);
        in.run_for(1s);
        REQUIRE_FALSE(result->done);
        receiver.close();
    }
}

TEST_CASE("an acknowledgement of a frame that was not sent ends the sender")
{
    bed in{listening()};
    answering receiver{in};
    tensor_sender sender{in.io, {.address = receiver.address()}};
    auto const sent = std::make_shared<outcome>();
    sender.async_send(frame_4(0).views, noting(sent));
    receiver.answer(48, encode(detail::welcome{}));
    CHECK(code_of(in, sent) == error_code{});
    auto const flushed = std::make_shared<outcome>();
    sender.async_flush(noting(flushed));
    receiver.answer(0, encode_ack(1));
    CHECK(code_of(in, flushed) == boost::system::errc::protocol_error);
    CHECK(sender.why().advice == "the receiver acknowledges frame 1, which this sender has not sent");
}

TEST_CASE("a second sender of a number is refused, and one that resumes goes on behind the first")
{
    bed in{listening({.batch_size = 4, .queue_depth = 4})};
    auto first = sender_to(in);
    for (std::uint64_t i = 0; i < 2; ++i)
        CHECK(send_4(in, first, i) == error_code{});
    CHECK(flush(in, first) == error_code{});
    CHECK(first.acknowledged() == 2);
    auto second = sender_to(in);
    CHECK(greet(in, second) == errc::wrong_source);
    CHECK_THAT(second.why().advice, ContainsSubstring("another sender of this number has sent"));
    auto none = sender_to(in, {.source = 1});
    CHECK(greet(in, none) == errc::wrong_source);
    CHECK_THAT(none.why().advice, ContainsSubstring("no source of this number"));
    auto again = sender_to(in, {.resume = true});
    CHECK(greet(in, again) == error_code{});
    CHECK(again.received() == 2);
    for (std::uint64_t i = 0; i < 4; ++i)
        CHECK(send_4(in, again, i) == error_code{});
    CHECK(again.stats().frames == 2);
    auto const closed = std::make_shared<outcome>();
    again.async_close(noting(closed));
    CHECK(in.rest() == rows_from(0, 0, 16));
    CHECK(code_of(in, closed) == error_code{});
    CHECK(in.stream->stats().duplicates == 0);
}

TEST_CASE("a sender that resumes with fewer frames than the receiver has fails at its end")
{
    bed in{listening({.batch_size = 4, .queue_depth = 4})};
    auto first = sender_to(in);
    for (std::uint64_t i = 0; i < 3; ++i)
        CHECK(send_4(in, first, i) == error_code{});
    CHECK(flush(in, first) == error_code{});
    auto again = sender_to(in, {.resume = true});
    CHECK(close(in, again) == boost::system::errc::invalid_argument);
    CHECK_THAT(again.why().advice,
               ContainsSubstring("the receiver has 3 frames of this source, and the sender made 1"));
}

TEST_CASE("a receiver that was started again before what it acknowledged is an error, and no gap")
{
    bed first{listening({.batch_size = 4, .queue_depth = 4})};
    auto sender = sender_to(first, {.reconnect_timeout = 10min});
    for (std::uint64_t i = 0; i < 3; ++i)
        CHECK(send_4(first, sender, i) == error_code{});
    CHECK(flush(first, sender) == error_code{});
    auto const taken = first.next();
    auto where = listening({.batch_size = 4, .position = taken->got.position()});
    where.listen = {first.where()};
    first.stream.reset();
    first.run_for(10ms);
    tensor_stream again{first.io, first.session, where};
    CHECK(send_4(first, sender, 3) == errc::stream_cut);
    CHECK_THAT(sender.why().advice,
               ContainsSubstring(
                   "starts again with frame 1, but this sender has discarded the acknowledged frames before frame 3"));
}

TEST_CASE("a sender keeps no more than its window, and a cancelled send reports whether its frame is kept")
{
    bed in{listening({.batch_size = 4, .queue_depth = 4, .acknowledge = acknowledge_when::taken})};
    auto sender = sender_to(in, {.window = 3 * frame_size});
    for (std::uint64_t i = 0; i < 3; ++i)
        CHECK(send_4(in, sender, i) == error_code{});
    asio::cancellation_signal signal;
    auto const type = GENERATE(asio::cancellation_type::terminal, asio::cancellation_type::total);
    auto const waits = std::make_shared<outcome>();
    sender.async_send(frame_4(3).views, asio::bind_cancellation_slot(signal.slot(), noting(waits)));
    in.run_for(1s);
    CHECK_FALSE(waits->done);
    auto const is_cancelled = GENERATE(false, true);
    if (is_cancelled) {
        signal.emit(type);
        CHECK_FALSE(waits->done);
        CHECK(code_of(in, waits) == asio::error::operation_aborted);
        CHECK(sender.next_frame() == 3);
    }
    for (std::uint64_t i = 0; i < 3; ++i)
        CHECK(in.next_rows() == rows_from(0, 4 * i, 4));
    if (is_cancelled) {
        auto const next = std::make_shared<outcome>();
        sender.async_send(frame_4(3).views, noting(next));
        signal.emit(type);  // of an operation that is over
        CHECK(code_of(in, next) == error_code{});
    }
    CHECK(code_of(in, waits) == (is_cancelled ? error_code{asio::error::operation_aborted} : error_code{}));
    CHECK(sender.next_frame() == 4);
    CHECK(in.next_rows() == rows_from(0, 12, 4));
    CHECK(in.soon([&] { return sender.acknowledged() == 4; }));
    CHECK(sender.stats().connections == 1);
}

TEST_CASE("a send that was cancelled with its frame half written goes on with the next operation")
{
    auto const type = GENERATE(asio::cancellation_type::partial, asio::cancellation_type::total);
    // The receiver does not read while nobody takes batches, and a frame is more than the sockets hold.
    bed in{listening({.batch_size = 1, .queue_depth = 1})};
    auto sender = sender_to(in);
    constexpr std::uint64_t rows = 96;
    auto const bytes = std::make_shared<std::vector<std::byte>>(rows << 20, std::byte{7});
    std::array const large{tensor_view{{"x", dtype::u8, {1 << 20}}, *bytes}};
    CHECK(done(in, [&](auto handler) { sender.async_send(large, bytes, handler); }) == error_code{});
    asio::cancellation_signal signal;
    auto const result = std::make_shared<outcome>();
    sender.async_send(large, bytes, asio::bind_cancellation_slot(signal.slot(), noting(result)));
    in.run_for(1s);
    REQUIRE_FALSE(result->done);
    CHECK(sender.next_frame() == 2);
    signal.emit(type);
    in.run_for(1s);
    // Total cancellation would leave no trace of the frame.
    CHECK(result->done == (type == asio::cancellation_type::partial));
    if (result->done)
        CHECK(result->code == asio::error::operation_aborted);
    else
        sender.cancel();
    CHECK(code_of(in, result) == asio::error::operation_aborted);
    auto const closed = std::make_shared<outcome>();
    sender.async_close(noting(closed));
    for (std::uint64_t seen = 0; seen < 2 * rows; ++seen)
        CHECK(in.next()->got["x"].bytes.size() == 1 << 20);
    CHECK(in.next()->code == asio::error::eof);
    CHECK(code_of(in, closed) == error_code{});
    CHECK(sender.stats().connections == 1);
    CHECK(in.stream->errors().empty());
}

TEST_CASE("an epoch that a sender ends ends at the receiver, and the next follows")
{
    bed in{listening({.batch_size = 8, .queue_depth = 4})};
    auto sender = sender_to(in);
    CHECK(send_4(in, sender, 0) == error_code{});
    CHECK(done(in, [&](auto handler) { sender.async_end_epoch(handler); }) == error_code{});
    CHECK(send_4(in, sender, 1) == error_code{});
    auto const closed = std::make_shared<outcome>();
    auto const last = frame_4(2);
    sender.async_close(last.views, last.bytes, noting(closed));
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    CHECK(in.next()->code == errc::epoch_ended);
    CHECK(in.rest() == rows_from(0, 4, 8));
    CHECK(code_of(in, closed) == error_code{});
    CHECK(in.stream->stats().frames == 4);
}

TEST_CASE("an invalid frame is refused before its first byte, and the next frame is sent")
{
    bed in{listening({.batch_size = 4})};
    auto sender = sender_to(in);
    std::vector<std::byte> const bytes(24);
    auto const refusal = [&](std::vector<tensor_view> const& tensors) {
        CHECK(done(in, [&](auto handler) { sender.async_send(tensors, handler); }) ==
              boost::system::errc::invalid_argument);
        CHECK(sender.next_frame() == 0);
        return sender.why().advice;
    };
    CHECK_THAT(refusal({}), ContainsSubstring("this frame has no tensor"));
    CHECK(refusal({{{"x", dtype::f32, {}}, bytes}, {{"y", dtype::u8, {}}, bytes}}) ==
          "the tensors of a frame must have the same number of rows, at least one; these have 6, 24");
    CHECK(refusal({{{"x", dtype::f32, {}}, {}}}) ==
          "the tensors of a frame must have the same number of rows, at least one; these have 0");
    CHECK(refusal({{{"x", dtype::f32, {5}}, bytes}}) == "24 bytes of tensor x are not a whole number of rows of 20");
    CHECK(refusal({{{"x", dtype::f32, {0}}, bytes}}) == "tensor x has a dimension of 0");
    CHECK(refusal({{{"a b", dtype::u8, {}}, bytes}}) == R"(the name of a tensor is "a b")");
    CHECK(refusal({{{"x", dtype::u8, {}}, bytes}, {{"x", dtype::u8, {}}, bytes}}) == "two tensors are named x");
    CHECK(sender.stats().connections == 0);
    CHECK(send_4(in, sender, 0) == error_code{});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    CHECK(done(in, [&](auto handler) { sender.async_send(std::array{frame_4(1).views[0]}, handler); }) ==
          boost::system::errc::invalid_argument);
    CHECK_THAT(sender.why().advice, ContainsSubstring("the same tensors"));
}

TEST_CASE("a sender owns a copy of the bytes, or an owner of them until they are acknowledged")
{
    bed in{listening({.batch_size = 4, .queue_depth = 4, .acknowledge = acknowledge_when::taken})};
    auto sender = sender_to(in);
    auto copied = frame_4(0);
    auto const result = std::make_shared<outcome>();
    sender.async_send(copied.views, noting(result));
    std::ranges::fill(*copied.bytes, std::byte{});
    CHECK(code_of(in, result) == error_code{});
    CHECK(copied.bytes.use_count() == 1);
    auto owned = frame_4(1);
    CHECK(done(in, [&](auto handler) { sender.async_send(owned.views, owned.bytes, handler); }) == error_code{});
    CHECK(owned.bytes.use_count() == 2);
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    CHECK(in.next_rows() == rows_from(0, 4, 4));
    CHECK(in.soon([&] { return sender.acknowledged() == 2; }));
    CHECK(owned.bytes.use_count() == 1);
}

TEST_CASE("a sender waits for a receiver no longer than connect_timeout")
{
    bed in{listening({.batch_size = 4})};
    tcp::acceptor nobody{in.io};
    nobody.open(tcp::v4());
    nobody.bind({asio::ip::address_v4::loopback(), 0});
    auto const begin = std::chrono::steady_clock::now();
    auto const timeout = GENERATE(std::chrono::milliseconds{}, std::chrono::milliseconds{30s});
    tensor_sender sender{in.io, {.address = text_of(nobody.local_endpoint()), .source = 3, .connect_timeout = timeout}};
    CHECK(done(in, [&](auto handler) { sender.async_connect(handler); }) == asio::error::connection_refused);
    CHECK(std::chrono::steady_clock::now() - begin >= timeout);
    CHECK(std::chrono::steady_clock::now() - begin < timeout + 1s);
    CHECK(sender.why().operation == "connect");
    CHECK(sender.why().object == "source 3 to " + text_of(nobody.local_endpoint()));
    CHECK_THAT(sender.why().advice,
               ContainsSubstring(timeout.count() > 0 ? "no connection within 30 s" : "no connection within 0 s"));
    // It is not ended by that.
    auto const waits = std::make_shared<outcome>();
    nobody.listen();
    sender.async_connect(noting(waits));
    CHECK(code_of(in, waits) == error_code{});
}

TEST_CASE("a connection that gets no answer is waited for no longer than connect_timeout")
{
    bed in{listening()};
    tcp::acceptor full{in.io};
    full.open(tcp::v4());
    full.bind({asio::ip::address_v4::loopback(), 0});
    full.listen(0);
    auto const where = full.local_endpoint();
    std::vector<tcp::socket> callers;
    for (auto i = 0; i < 3; ++i) {
        callers.emplace_back(in.io, tcp::v4()).native_non_blocking(true);
        ::connect(callers.back().native_handle(), where.data(), static_cast<socklen_t>(where.size()));
    }
    auto const begin = std::chrono::steady_clock::now();
    tensor_sender sender{in.io, {.address = text_of(where), .connect_timeout = 30s}};
    CHECK(done(in, [&](auto handler) { sender.async_connect(handler); }) == asio::error::timed_out);
    CHECK(std::chrono::steady_clock::now() - begin >= 30s);
    CHECK_THAT(sender.why().advice, ContainsSubstring("no connection within 30 s"));
    // And cancelled.
    auto const waits = std::make_shared<outcome>();
    sender.async_connect(noting(waits));
    in.run_for(1s);
    CHECK_FALSE(waits->done);
    sender.cancel();
    CHECK(code_of(in, waits) == asio::error::operation_aborted);
}

TEST_CASE("a sender finds a receiver that listens later, with pauses that grow to two seconds")
{
    bed in{listening({.batch_size = 4})};
    auto const where = in.where();
    in.stream.reset();
    tensor_sender sender{in.io, {.address = text_of(where)}};
    auto const result = std::make_shared<outcome>();
    sender.async_send(frame_4(0).views, noting(result));
    in.run_for(10s);
    CHECK_FALSE(result->done);
    auto options = listening({.batch_size = 4});
    options.listen = {where};
    in.stream.emplace(in.io, in.session, options);
    in.run_for(900ms);
    CHECK_FALSE(result->done);  // the attempts were at 9.15 s, and will be at 11.15 s
    in.run_for(1100ms);
    CHECK(result->done);
    CHECK(code_of(in, result) == error_code{});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
}

TEST_CASE("a sender gives a receiver up after reconnect_timeout without an acknowledgement, and counts its kept frames")
{
    auto const timeout = GENERATE(std::chrono::milliseconds{}, std::chrono::milliseconds{20s});
    bed in{listening({.batch_size = 4, .acknowledge = acknowledge_when::taken})};
    auto sender = sender_to(in, {.reconnect_timeout = timeout});
    CHECK(send_4(in, sender, 0) == error_code{});
    in.stream.reset();
    in.run_for(10ms);
    auto const begin = std::chrono::steady_clock::now();
    auto const code = send_4(in, sender, 1);
    CHECK((code == asio::error::connection_refused || code == asio::error::connection_reset));
    CHECK(std::chrono::steady_clock::now() - begin >= timeout);
    CHECK(std::chrono::steady_clock::now() - begin < timeout + 1s);
    CHECK_THAT(sender.why().advice, ContainsSubstring("frames are not acknowledged"));
    if (timeout.count() > 0)
        CHECK_THAT(sender.why().advice, ContainsSubstring(", for 20 s; "));
    CHECK(flush(in, sender) == code);
}

TEST_CASE("a sender waits no longer than its timeout for a receiver that takes nothing")
{
    bed in{listening({.batch_size = 4, .acknowledge = acknowledge_when::taken})};
    auto sender = sender_to(in, {.timeout = 3s});
    CHECK(send_4(in, sender, 0) == error_code{});
    CHECK(flush(in, sender) == asio::error::timed_out);
    CHECK(sender.why().advice ==
          "the receiver accepted no byte for 3000 ms (timeout): it has no free memory, or has stopped");
    CHECK(sender.stats().connections == 1);
}

TEST_CASE("a receiver that does not answer is given a minute")
{
    bed in{listening()};
    answering silent{in};
    tensor_sender sender{in.io, {.address = silent.address()}};
    auto const begin = std::chrono::steady_clock::now();
    CHECK(greet(in, sender) == asio::error::timed_out);
    CHECK(std::chrono::steady_clock::now() - begin >= 1min);
}

TEST_CASE("a connection closed before its first frame is replaced")
{
    bed in{listening({.batch_size = 4, .stall_timeout = 2s})};
    auto sender = sender_to(in, {.reconnect_timeout = 0s});
    CHECK(done(in, [&](auto handler) { sender.async_connect(handler); }) == error_code{});
    in.run_for(10s);
    CHECK(send_4(in, sender, 0) == error_code{});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
    CHECK(sender.stats().connections == 2);
    CHECK(in.stream->errors().empty());
}

TEST_CASE("a sender listens for a receiver that connects, and for the next one")
{
    asio::io_context other{1};
    tcp::endpoint const any{asio::ip::address_v4::loopback(), 0};
    auto const where = *tensor_sender{other, {.listen = any}}.local_endpoint();
    auto const before = gpurx::test::inherited_descriptors();
    bed in{{.connect = {where}, .batch_size = 4, .queue_depth = 4}};
    tensor_sender sender{in.io, {.listen = where}};
    CHECK(send_4(in, sender, 0) == error_code{});
    auto const taken = in.next();
    CHECK(rows_of(taken->got) == rows_from(0, 0, 4));
    CHECK(gpurx::test::inherited_descriptors() == before);  // a program that is executed gets none
    tensor_stream_options next{.connect = {where}, .batch_size = 4, .position = taken->got.position()};
    in.stream.emplace(in.io, in.session, next);
    CHECK(send_4(in, sender, 1) == error_code{});
    auto const closed = std::make_shared<outcome>();
    sender.async_close(noting(closed));
    CHECK(in.rest() == rows_from(0, 4, 4));
    CHECK(code_of(in, closed) == error_code{});
    CHECK(sender.stats().connections == 2);
}

TEST_CASE("a second operation of a sender is refused, and disturbs nothing")
{
    bed in{listening({.batch_size = 4})};
    auto sender = sender_to(in);
    auto const first = std::make_shared<outcome>();
    auto const second = std::make_shared<outcome>();
    sender.async_send(frame_4(0).views, noting(first));
    sender.async_flush(noting(second));
    CHECK_FALSE(second->done);
    CHECK(code_of(in, second) == gpurx::errc::already_running);
    CHECK(code_of(in, first) == error_code{});
    CHECK(in.next_rows() == rows_from(0, 0, 4));
}

TEST_CASE("a sender's handler runs on its associated executor, and never inside the initiating function")
{
    bed in{listening({.batch_size = 4})};
    auto sender = sender_to(in);
    asio::io_context other{1};
    auto called = 0;
    // The second finds everything done.
    for (auto const expected : {1, 2}) {
        asio::post(in.io, [&] {
            sender.async_greet(asio::bind_executor(other, [&](error_code code) {
                CHECK(other.get_executor().running_in_this_thread());
                CHECK_FALSE(code);
                ++called;
            }));
            CHECK(called == expected - 1);
        });
        CHECK(in.soon([&] {
            other.restart();
            other.poll();
            return called == expected;
        }));
    }
    // One that is refused as well.
    auto const refused = std::make_shared<outcome>();
    asio::post(in.io, [&] {
        sender.async_send({}, noting(refused));
        CHECK_FALSE(refused->done);
    });
    CHECK(code_of(in, refused) == boost::system::errc::invalid_argument);
}

TEST_CASE("aborting, destroying and assigning end a sender's operation with operation_aborted")
{
    auto const how = GENERATE(0, 1, 2);
    auto const waits_for = GENERATE(0, 1, 2);
    bed in{listening({.batch_size = 4, .acknowledge = acknowledge_when::taken, .reconnect_timeout = 1s})};
    tcp::acceptor nobody{in.io};
    nobody.open(tcp::v4());
    nobody.bind({asio::ip::address_v4::loopback(), 0});
    answering silent{in};
    std::array const addresses{text_of(in.where()), text_of(nobody.local_endpoint()), silent.address()};
    std::optional<tensor_sender> sender{std::in_place, in.io,
                                        tensor_sender_options{.address = addresses.at(waits_for)}};
    if (waits_for == 0)
        CHECK(send_4(in, *sender, 0) == error_code{});
    auto const pending = std::make_shared<outcome>();
    sender->async_flush(noting(pending));
    in.run_for(100ms);
    REQUIRE_FALSE(pending->done);
    if (how == 0)
        sender->abort();
    else if (how == 1)
        sender.reset();
    else
        *sender = tensor_sender{in.io, {.address = addresses[0], .source = 1}};
    CHECK_FALSE(pending->done);
    CHECK(code_of(in, pending) == asio::error::operation_aborted);
    if (how == 0)
        CHECK(flush(in, *sender) == asio::error::operation_aborted);
    if (waits_for == 0)
        REQUIRE(in.soon([&] { return errors_of(in, 0).size() == 1; }));
}

TEST_CASE("a sender that was moved goes on, with its operation")
{
    bed in{listening({.batch_size = 4})};
    auto first = sender_to(in);
    auto const pending = std::make_shared<outcome>();
    first.async_send(frame_4(0).views, noting(pending));
    auto second = std::move(first);
    CHECK(code_of(in, pending) == error_code{});
    CHECK(second.next_frame() == 1);
    CHECK(in.next_rows() == rows_from(0, 0, 4));
}

TEST_CASE("nothing of a sender runs between two operations")
{
    bed in{listening()};
    asio::io_context own{1};
    tensor_sender sender{own, {.address = text_of(in.where())}};
    auto const result = std::make_shared<outcome>();
    sender.async_send(frame_4(0).views, noting(result));
    CHECK(in.soon([&] {
        own.restart();
        own.poll();
        return result->done;
    }));
    CHECK(in.soon([&] {
        own.restart();
        own.poll();
        return own.stopped();
    }));
}

TEST_CASE("an io_context may be destroyed with a sender's operation under way")
{
    rx_session session{{.transport = transport::copy, .max_flows = 8}, device_memory::on_host(8 << 20)};
    auto const owned = frame_4(0);
    {
        asio::io_context io{1};
        tensor_stream stream{io, session, listening({.batch_size = 4, .acknowledge = acknowledge_when::taken})};
        auto const run = [&](tensor_sender sender) -> asio::awaitable<void> {
            co_await sender.async_send(owned.views, owned.bytes);
            co_await sender.async_flush();
        };
        asio::co_spawn(io, run(tensor_sender{io, {.address = text_of(stream.local_endpoints()[0])}}), asio::detached);
        io.run_for(20ms);
        CHECK_FALSE(io.stopped());
    }
    CHECK(owned.bytes.use_count() == 1);
}

TEST_CASE("a failed co_await of a sender's operation has the frame, the source and the reason")
{
    bed in{listening({.batch_size = 4, .secret = shared_secret})};
    auto sender = sender_to(in);
    std::string said;
    asio::co_spawn(
        in.io, [&]() -> asio::awaitable<void> { co_await sender.async_end_epoch(); },
        [&](std::exception_ptr const& failure) {
            try {
                std::rethrow_exception(failure);
            } catch (system_error const& error) {
                said = error.what();
            }
        });
    in.run_until([&] { return !said.empty(); });
    CHECK(said == "send frame 0 of source 0 to " + text_of(in.where()) +
                      ": the sender has another secret; it requires a secret, and this sender has none");
}

TEST_CASE("options of a sender that contradict themselves are refused, with the reason")
{
    asio::io_context io{1};
    tcp::endpoint const any{asio::ip::address_v4::loopback(), 0};
    auto const refusal = [&](tensor_sender_options options) {
        try {
            tensor_sender const made{io, std::move(options)};
        } catch (system_error const& error) {
            CHECK(error.code() == boost::system::errc::invalid_argument);
            return error.why().advice;
        }
        return std::string{"nothing"};
    };
    CHECK(refusal({}) == "set either address or listen");
    CHECK(refusal({.address = "a:1", .listen = any}) == "set either address or listen");
    for (auto const* const address : {"127.0.0.1", ":9000", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "[]:1"})
        CHECK(refusal({.address = address}) == '"' + std::string{address} + "\" is not HOST:PORT of a receiver");
    CHECK(refusal({.address = "a:1", .secret = "hunter2"}) == "secret must have at least 16 bytes");
    CHECK(refusal({.address = "[::1]:9000"}) == "nothing");
    tcp::acceptor const taken{io, any};
    CHECK_THROWS_WITH((tensor_sender{io, {.listen = taken.local_endpoint()}}),
                      ContainsSubstring("listen on 127.0.0.1:"));
}

}  // namespace gpurx::ingest::test
