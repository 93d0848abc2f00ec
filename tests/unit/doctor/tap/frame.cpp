// SPDX-License-Identifier: Apache-2.0
#include "tap/frame.hpp"

#include <catch2/catch_test_macros.hpp>
#include <span>

#include "frames.hpp"

using namespace gpurx::doctor::tap;

namespace {

// As the tap takes it: the headers, and a byte more if the payload can be read.
std::optional<segment> parse(made_frame const& frame, bool readable)
{
    auto const bytes = frame.bytes();
    return parse_frame(std::span{bytes}.first(frame.headers() + (readable ? 1 : 0)), bytes.size());
}

}  // namespace

TEST_CASE("a segment is read", "[tap]")
{
    made_frame const frame{.flags = 0x18, .sequence = 0x89abcdef, .acknowledgement = 77, .payload = 1448};
    auto const read = parse(frame, false);
    REQUIRE(read);
    CHECK(to_string(read->source) == "10.0.0.2:4000");
    CHECK(to_string(read->destination) == "10.0.0.1:5000");
    CHECK(read->id == 7);
    CHECK(read->sequence == 0x89abcdef);
    CHECK(read->acknowledgement == 77);
    CHECK(read->ack);
    CHECK_FALSE(read->syn);
    CHECK_FALSE(read->fin);
    CHECK(read->window == 512);
    CHECK(read->payload == 1448);
    CHECK(read->headers == 54);
    CHECK_FALSE(read->readable);
    CHECK(parse(frame, true)->readable);
}

TEST_CASE("IPv6 and options", "[tap]")
{
    made_frame const frame{.source = "fd00::2",
                           .destination = "fd00::1",
                           .flags = 0x12,
                           .tcp_options = {2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 9}};
    auto const read = parse(frame, false);
    REQUIRE(read);
    CHECK(to_string(read->source) == "[fd00::2]:4000");
    CHECK(read->syn);
    CHECK(read->window_scale == 9);
    CHECK(read->timestamp == 0x01020304U);
    CHECK(read->payload == 0);
    CHECK(read->headers == 14 + 40 + 40);
}

TEST_CASE("padding of a short frame is no payload, and readable padding no sign of one", "[tap]")
{
    made_frame const frame{.padding = 6};
    auto const read = parse(frame, true);
    REQUIRE(read);
    CHECK(read->payload == 0);
    CHECK_FALSE(read->readable);
}

TEST_CASE("a packet that is too long for its header to say has the length of the frame", "[tap]")
{
    CHECK(parse({.payload = 1500, .has_length = false}, false)->payload == 1500);
    CHECK(
        parse({.source = "fd00::2", .destination = "fd00::1", .payload = 1500, .has_length = false}, false)->payload ==
        1500);
}

TEST_CASE("a frame that is cut off or lies about its length is no segment", "[tap]")
{
    for (auto const& whole :
         {made_frame{.ip_options = {1, 1, 1, 0}, .tcp_options = {8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 0}},
          made_frame{.source = "fd00::2", .destination = "fd00::1"}}) {
        auto const bytes = whole.bytes();
        for (std::size_t size = 0; size < bytes.size(); ++size)
            CHECK_FALSE(parse_frame(std::span{bytes}.first(size), bytes.size()));
        CHECK(parse_frame(bytes, bytes.size()));
    }
    CHECK_FALSE(parse({.protocol = 17}, false));
    auto short_tcp = made_frame{}.bytes();
    short_tcp[14 + 20 + 12] = std::byte{0x40};
    CHECK_FALSE(parse_frame(short_tcp, short_tcp.size()));
    auto short_ip = made_frame{}.bytes();
    short_ip[14] = std::byte{0x44};
    CHECK_FALSE(parse_frame(short_ip, short_ip.size()));
}

TEST_CASE("options that lie about their length are left out", "[tap]")
{
    for (auto const& lie : {std::vector<std::uint8_t>{3, 0, 9, 0}, {3, 9, 9, 0}, {1, 1, 1, 3}, {3, 1, 7, 0}}) {
        auto const read = parse({.tcp_options = lie}, false);
        REQUIRE(read);
        CHECK_FALSE(read->window_scale);
    }
}
