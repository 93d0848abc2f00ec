// SPDX-License-Identifier: Apache-2.0
//
// A receiver as an AsyncReadStream: async_read_some, and what Asio and Beast build on it.
#include <array>
#include <boost/asio/buffered_read_stream.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace beast = boost::beast;
namespace error = asio::error;

static_assert(beast::is_async_read_stream<receiver>::value);
static_assert(beast::is_async_write_stream<receiver>::value);

template <class Buffers>
completion_ptr read_some(world& in, receiver& rx, Buffers const& to)
{
    auto got = make_completion();
    rx.async_read_some(to, noting{got});
    CHECK_FALSE(got->done());
    in.run_until([&] { return got->done(); });
    return got;
}

void send(sender& to, std::string_view text)
{
    asio::write(to.socket(), asio::buffer(text));
}

}  // namespace

TEST_CASE("a read of some takes the available bytes, up to the room")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(100);
    std::vector<std::byte> bytes(60);
    CHECK(read_some(in, rx, asio::buffer(bytes))->bytes == 60);
    CHECK(is_pattern(bytes, 0));
    CHECK(rx.available() == 40);
    CHECK(read_some(in, rx, host_span{bytes})->bytes == 40);
    CHECK(is_pattern(std::span{bytes}.first(40), 60));
    CHECK(rx.available() == 0);
    CHECK(in.kernel.tokens_out() == 0);
    CHECK(rx.stats().bytes() == 100);
}

TEST_CASE("a read of some waits for the first byte, and for no second one")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<std::byte> bytes(1000);
    auto const got = make_completion();
    rx.async_read_some(asio::buffer(bytes), noting{got});
    in.settle();
    CHECK_FALSE(got->done());
    to.send(1);
    in.run_until([&] { return got->done(); });
    CHECK_FALSE(got->code);
    CHECK(got->bytes == 1);
    CHECK(bytes[0] == pattern(0));
}

TEST_CASE("a read of some fills buffer after buffer")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(100);
    std::vector<std::byte> bytes(60);
    auto const all = std::span{bytes};
    // Any sequence, with empty buffers in it.
    std::list<asio::mutable_buffer> const parts{asio::buffer(bytes, 0), asio::buffer(bytes, 7), asio::buffer(bytes, 0),
                                                asio::buffer(bytes) + 7};
    std::size_t placed = 0;
    // How many at a time is the transport's affair.
    auto const first = read_some(in, rx, parts);
    placed = first->bytes;
    CHECK(placed >= 7);
    CHECK(is_pattern(all.first(placed), 0));
    while (placed < 60)
        placed += read_some(in, rx, asio::buffer(bytes) + placed)->bytes;
    CHECK(is_pattern(all, 0));
    CHECK(receive(in, rx)->bytes == 40);
}

TEST_CASE("a read of some into nothing completes at once, connected or not")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::array<asio::mutable_buffer, 2> const nothing{};
    std::vector<asio::mutable_buffer> const no_buffer;
    auto const check = [&] {
        CHECK_FALSE(read_some(in, rx, nothing)->code);
        CHECK_FALSE(read_some(in, rx, no_buffer)->code);
        CHECK(read_some(in, rx, asio::mutable_buffer{})->bytes == 0);
    };
    check();
    rx.close();
    check();
    std::byte byte{};
    CHECK(read_some(in, rx, asio::buffer(&byte, 1))->code == error::not_connected);
}

TEST_CASE("reads of some, whole reads and loans share one stream")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10000);
    std::vector<std::byte> bytes(10);
    CHECK(read_some(in, rx, asio::buffer(bytes))->bytes == 10);
    auto const read = make_completion();
    async_read(rx, asio::buffer(bytes), noting{read});
    in.run_until([&] { return read->done(); });
    CHECK(is_pattern(bytes, 10));
    std::size_t at = 20;
    while (at < 10000) {
        auto const got = receive(in, rx);
        REQUIRE_FALSE(got->code);
        CHECK(is_pattern(got->loan, at));
        at += got->bytes;
    }
    to.send(5);
    CHECK(read_some(in, rx, asio::buffer(bytes))->bytes == 5);
    CHECK(is_pattern(std::span{bytes}.first(5), 10000));
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("the end of the stream comes after its last byte")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10);
    to.finish();
    std::vector<std::byte> bytes(100);
    auto const last = read_some(in, rx, asio::buffer(bytes));
    CHECK_FALSE(last->code);
    CHECK(last->bytes == 10);
    for (int i = 0; i < 2; ++i) {
        auto const ended = read_some(in, rx, asio::buffer(bytes));
        CHECK(ended->code == error::eof);
        CHECK(ended->bytes == 0);
    }
}

TEST_CASE("a second operation beside a read of some is refused and disturbs nothing")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<std::byte> bytes(100);
    std::vector<std::byte> others(100);
    std::array<asio::mutable_buffer, 2> const two{asio::buffer(bytes, 50), asio::buffer(bytes) + 50};
    auto const first = make_completion();
    async_read(rx, two, noting{first});
    in.settle();
    std::array<asio::mutable_buffer, 2> const theirs{asio::buffer(others, 10), asio::buffer(others) + 10};
    CHECK(read_some(in, rx, theirs)->code == errc::already_running);
    to.send(100);
    in.run_until([&] { return first->done(); });
    CHECK(first->bytes == 100);
    CHECK(is_pattern(bytes, 0));
    CHECK(others == std::vector<std::byte>(100));
}

TEST_CASE("Asio's composed reads work on a receiver")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    SECTION("until a delimiter, into a growing string")
    {
        send(to, "first\nsecond\nthird");
        std::string text;
        auto const line = [&] {
            auto const got = make_completion();
            asio::async_read_until(rx, asio::dynamic_buffer(text), '\n', noting{got});
            in.run_until([&] { return got->done(); });
            REQUIRE_FALSE(got->code);
            auto found = text.substr(0, got->bytes);
            text.erase(0, got->bytes);
            return found;
        };
        CHECK(line() == "first\n");
        CHECK(line() == "second\n");
        // What went beyond the line is in the string; the rest is in the stream.
        auto const rest = make_completion();
        asio::async_read(rx, asio::dynamic_buffer(text), asio::transfer_exactly(5 - text.size()), noting{rest});
        in.run_until([&] { return rest->done(); });
        CHECK(text == "third");
    }
    SECTION("a part of a buffer, by a condition")
    {
        std::array<char, 100> text{};
        auto const got = make_completion();
        asio::async_read(rx, asio::buffer(text), asio::transfer_at_least(3), noting{got});
        in.settle();
        send(to, "ab");
        in.settle();
        CHECK_FALSE(got->done());
        send(to, "cd");
        in.run_until([&] { return got->done(); });
        CHECK(got->bytes == 4);
    }
    SECTION("a stream on top of it")
    {
        asio::buffered_read_stream<receiver&> buffered{rx};
        send(to, "abcdef");
        std::array<char, 4> text{};
        auto const got = make_completion();
        asio::async_read(buffered, asio::buffer(text), noting{got});
        in.run_until([&] { return got->done(); });
        CHECK(std::string_view{text.data(), 4} == "abcd");
    }
}

TEST_CASE("Beast's parsers read from a receiver, and leave what is not theirs")
{
    namespace http = beast::http;
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    beast::flat_buffer buffer;
    SECTION("a header, and the body to its place")
    {
        std::string const header = "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n";
        send(to, header);
        to.send(5000);
        http::response_parser<http::empty_body> parser;
        parser.body_limit(boost::none);
        auto const got = make_completion();
        http::async_read_header(rx, buffer, parser, noting{got});
        in.run_until([&] { return got->done(); });
        REQUIRE_FALSE(got->code);
        CHECK(parser.get().result_int() == 200);
        CHECK(*parser.content_length() == 5000);
        // What came with it in the buffer, and then what comes.
        std::vector<std::byte> body(5000);
        auto const early = asio::buffer_copy(asio::buffer(body), buffer.data());
        auto const read = make_completion();
        async_read(rx, asio::buffer(body) + early, noting{read});
        in.run_until([&] { return read->done(); });
        CHECK(is_pattern(body, 0));
    }
    SECTION("two messages, one after the other, cut where they like")
    {
        std::string const text =
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 404 Not Found\r\n"
            "Transfer-Encoding: chunked\r\n\r\n4\r\ndefg\r\n0\r\n\r\n";
        auto const read = [&] {
            auto message = std::make_shared<http::response<http::string_body>>();
            auto const got = make_completion();
            http::async_read(rx, buffer, *message, noting{got});
            return std::pair{message, got};
        };
        auto const [first, first_got] = read();
        for (std::size_t i = 0; i < text.size(); i += 11) {
            in.settle();
            send(to, std::string_view{text}.substr(i, 11));
        }
        in.run_until([&] { return first_got->done(); });
        REQUIRE_FALSE(first_got->code);
        CHECK(first->body() == "abc");
        auto const [second, second_got] = read();
        in.run_until([&] { return second_got->done(); });
        REQUIRE_FALSE(second_got->code);
        CHECK(second->result_int() == 404);
        CHECK(second->body() == "defg");
        CHECK(buffer.size() == 0);
    }
}

}  // namespace gpurx::test
