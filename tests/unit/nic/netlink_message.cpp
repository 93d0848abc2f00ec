// SPDX-License-Identifier: Apache-2.0
#include "nic/netlink.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cerrno>
#include <stdexcept>

#include "bytes.hpp"

using namespace gpurx::detail::netlink;
using gpurx::detail::test::bytes;

namespace {

bool same(bytes_view left, bytes_view right)
{
    return std::equal(left.begin(), left.end(), right.begin(), right.end());
}

// All numbers below are written as a little-endian machine stores them.

message whole(bytes const& raw)
{
    bytes_view rest{raw};
    auto const one = take_message(rest);
    REQUIRE(one);
    REQUIRE(rest.empty());
    return *one;
}

// NLMSG_ERROR for a request of 24 bytes (family 0x1f): header, error, the request's header.
bytes error_message(int length, int flags, bytes const& error)
{
    return bytes{length, 0, 0, 0, 2, 0, 0, flags, 7, 0, 0, 0, 9, 0, 0, 0} + error +
           bytes{24, 0, 0, 0, 0x1f, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0};
}
constexpr int capped = 1;
constexpr int tlvs = 2;
bytes const einval{0xea, 0xff, 0xff, 0xff};
bytes const extack_text = bytes{0x0d, 0, 1, 0} + bytes{"no split", 4};

}  // namespace

TEST_CASE("a request is a netlink header, a generic header and padded attributes")
{
    request made{0x1f, 13, 1, NLM_F_ACK};
    made.put(1, std::uint32_t{4});
    made.put(11, std::uint8_t{2});
    made.put(6, std::uint16_t{0x102});
    made.put(2, std::string_view{"dms0"});
    made.put_flag(3);
    made.set_sequence(0x01020304);

    bytes const expected = bytes{0x3c, 0, 0, 0, 0x1f, 0, 5, 0, 4, 3, 2, 1, 0, 0, 0, 0}  //
                           + bytes{13, 1, 0, 0}                                         //
                           + bytes{8, 0, 1, 0, 4, 0, 0, 0}                              //
                           + bytes{5, 0, 11, 0, 2, 0, 0, 0}                             //
                           + bytes{6, 0, 6, 0, 2, 1, 0, 0}                              //
                           + bytes{9, 0, 2, 0} + bytes{"dms0", 4}                       //
                           + bytes{4, 0, 3, 0};
    CHECK(same(made.bytes(), expected));
    CHECK(made.sequence() == 0x01020304);
    CHECK_FALSE(made.is_dump());
    CHECK(request{0x1f, 13, 1, NLM_F_DUMP}.is_dump());
}

TEST_CASE("nests carry their length and the nested flag")
{
    request made{0x1f, 13, 1, 0};
    made.nest(2, [](request& outer) {
        outer.put(1, std::uint32_t{7});
        outer.nest(3, [](request& inner) { inner.put_flag(1); });
    });
    made.put(5, std::uint32_t{9});

    bytes const expected = bytes{0x30, 0, 0, 0, 0x1f, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13, 1, 0, 0}    //
                           + bytes{20, 0, 2, 0x80, 8, 0, 1, 0, 7, 0, 0, 0, 8, 0, 3, 0x80, 4, 0, 1, 0}  //
                           + bytes{8, 0, 5, 0, 9, 0, 0, 0};
    CHECK(same(made.bytes(), expected));
}

TEST_CASE("an attribute longer than its 16-bit length is refused")
{
    std::string const text(70'000, 'x');
    request made{0x1f, 13, 1, 0};
    CHECK_THROWS_AS(made.put(1, std::string_view{text}), std::length_error);
    CHECK_THROWS_AS(made.nest(2,
                              [](request& nest) {
                                  for (std::uint32_t i = 0; i < 10'000; ++i)
                                      nest.put(1, i);
                              }),
                    std::length_error);
}

TEST_CASE("an offset in a request is the path of the attribute that starts there")
{
    request made{0x1f, 13, 1, 0};
    made.put(1, std::uint32_t{4});      // at 20
    made.nest(2, [](request& nest) {    // at 28
        nest.put(3, std::uint32_t{0});  // at 32
        nest.put(1, std::uint32_t{9});  // at 40
    });
    made.put(5, std::uint8_t{1});  // at 48
    using path = std::vector<std::uint16_t>;
    CHECK(path_at(made.bytes(), 20) == path{1});
    CHECK(path_at(made.bytes(), 28) == path{2});
    CHECK(path_at(made.bytes(), 32) == path{2, 3});
    CHECK(path_at(made.bytes(), 40) == path{2, 1});
    CHECK(path_at(made.bytes(), 48) == path{5});
    for (std::uint32_t const nowhere : {0U, 16U, 19U, 21U, 24U, 36U, 52U, 56U, 1000U, 0xffffffffU})
        CHECK(path_at(made.bytes(), nowhere).empty());
    CHECK(path_at(made.bytes().first(30), 28).empty());
    CHECK(path_at({}, 20).empty());
}

TEST_CASE("attributes are found by type and read by their exact size")
{
    bytes const raw = bytes{5, 0, 1, 0, 7, 0, 0, 0}                 //
                      + bytes{8, 0, 2, 0, 1, 2, 3, 4}               //
                      + bytes{12, 0, 3, 0, 1, 0, 0, 0, 1, 0, 0, 0}  //
                      + bytes{8, 0, 4, 0x80, 4, 0, 9, 0}            //
                      + bytes{8, 0, 2, 0, 9, 9, 9, 9}               // the second of its type
                      + bytes{6, 0, 6, 0, 5, 1, 0, 0};
    attributes const attrs{raw};
    CHECK(attrs.u8(1) == 7);
    CHECK(attrs.u32(2) == 0x04030201);
    CHECK(attrs.uint(2) == 0x04030201);
    CHECK(attrs.uint(3) == 0x1'0000'0001);
    CHECK(attrs.nested(4).find(9));
    CHECK(attrs.find(6)->u16() == 0x105);

    CHECK_FALSE(attrs.u32(1));
    CHECK_FALSE(attrs.u8(2));
    CHECK_FALSE(attrs.u32(3));
    CHECK_FALSE(attrs.uint(1));
    CHECK_FALSE(attrs.find(5));
    CHECK_FALSE(attrs.nested(5).find(9));
    CHECK_FALSE(attributes{}.find(1));
}

TEST_CASE("attributes that do not fit end the run")
{
    bytes const good{8, 0, 1, 0, 1, 0, 0, 0};
    auto const bad = GENERATE(bytes{9, 0, 2, 0, 1, 0, 0, 0},        // longer than what is left
                              bytes{3, 0, 2, 0, 1, 0, 0, 0},        // shorter than its own header
                              bytes{0, 0, 2, 0, 1, 0, 0, 0},        // would never end
                              bytes{0xff, 0xff, 2, 0, 1, 0, 0, 0},  //
                              bytes{8, 0, 2});                      // half a header
    bytes const raw = good + bad;
    attributes const attrs{raw};
    CHECK(attrs.u32(1) == 1);
    CHECK_FALSE(attrs.find(2));
    int count = 0;
    attrs.for_each([&count](attribute const&) { ++count; });
    CHECK(count == 1);
}

TEST_CASE("text ends at the first zero, or with the attribute")
{
    bytes const raw = bytes{8, 0, 1, 0} + bytes{"abcd", 0} + bytes{8, 0, 2, 0} + bytes{"ab", 2} + bytes{4, 0, 3, 0};
    attributes const attrs{raw};
    CHECK(attrs.find(1)->text() == "abcd");
    CHECK(attrs.find(2)->text() == "ab");
    CHECK(attrs.find(3)->text().empty());
}

TEST_CASE("messages are taken from a datagram one by one")
{
    bytes const raw = bytes{20, 0, 0, 0, 0x1f, 0, 2, 0, 7, 0, 0, 0, 9, 0, 0, 0, 3, 1, 0, 0} +
                      bytes{16, 0, 0, 0, 3, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0};
    bytes_view rest{raw};
    auto const first = take_message(rest);
    REQUIRE(first);
    CHECK(first->type == 0x1f);
    CHECK(first->flags == 2);
    CHECK(first->sequence == 7);
    CHECK(first->port == 9);
    REQUIRE(read_generic(*first));
    CHECK(read_generic(*first)->command == 3);
    auto const second = take_message(rest);
    REQUIRE(second);
    CHECK(second->type == 3);
    CHECK_FALSE(read_generic(*second));
    CHECK_FALSE(take_message(rest));
}

TEST_CASE("a message that is cut short is none")
{
    auto const raw = GENERATE(bytes{}, bytes{16, 0, 0, 0},                             //
                              bytes{17, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0},  // longer
                              bytes{15, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0},  // shorter
                              bytes{0, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0},   //
                              bytes{0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0});
    bytes_view rest{raw};
    CHECK_FALSE(take_message(rest));
}

TEST_CASE("an acknowledgement is a verdict without error")
{
    auto const raw = error_message(36, capped, {0, 0, 0, 0});
    CHECK(read_verdict(whole(raw)) == verdict{});
}

TEST_CASE("the kernel's text is taken from a capped error")
{
    auto const raw = error_message(36 + 16, capped | tlvs, einval) + extack_text;
    verdict expected;
    expected.error = EINVAL;
    expected.text = "no split";
    CHECK(read_verdict(whole(raw)) == expected);
}

TEST_CASE("the echoed request is passed over in an error that is not capped")
{
    // 8 bytes of the request after its header: they look like an attribute and must not be taken for one.
    bytes const echoed{8, 0, 1, 0, 'b', 'a', 'd', 0};
    auto const raw = error_message(36 + 8 + 16, tlvs, einval) + echoed + extack_text;
    CHECK(read_verdict(whole(raw))->text == "no split");
}

TEST_CASE("an error without attributes is only a number")
{
    // Without NLM_F_ACK_TLVS what follows is none of ours, whatever it looks like.
    auto const raw = error_message(36 + 16, capped, einval) + extack_text;
    verdict expected;
    expected.error = EINVAL;
    CHECK(read_verdict(whole(raw)) == expected);
}

TEST_CASE("an error names the attribute at fault, or the one that is missing")
{
    auto const bad = error_message(36 + 8, capped | tlvs, einval) + bytes{8, 0, 2, 0, 40, 0, 0, 0};
    CHECK(read_verdict(whole(bad))->offset == 40);
    auto const missing =
        error_message(36 + 16, capped | tlvs, einval) + bytes{8, 0, 5, 0, 3, 0, 0, 0} + bytes{8, 0, 6, 0, 28, 0, 0, 0};
    CHECK(read_verdict(whole(missing))->missing_type == 3);
    CHECK(read_verdict(whole(missing))->missing_in == 28);
}

TEST_CASE("the end of a dump carries a verdict, too")
{
    bytes const header{20, 0, 0, 0, 3, 0, 2, 0, 7, 0, 0, 0, 9, 0, 0, 0};
    CHECK(read_verdict(whole(header + bytes{0, 0, 0, 0})) == verdict{});

    bytes const with_text = bytes{36, 0, 0, 0, 3, 0, 2, 2, 7, 0, 0, 0, 9, 0, 0, 0} + einval + extack_text;
    CHECK(read_verdict(whole(with_text))->error == EINVAL);
    CHECK(read_verdict(whole(with_text))->text == "no split");
}

TEST_CASE("a verdict that is cut short or malformed is read as far as it goes")
{
    SECTION("no error number")
    {
        bytes const raw{18, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 0xea, 0xff};
        bytes_view rest{raw};
        CHECK_FALSE(read_verdict(*take_message(rest)));
    }
    SECTION("no echoed header")
    {
        bytes const raw = bytes{20, 0, 0, 0, 2, 0, 0, tlvs, 7, 0, 0, 0, 9, 0, 0, 0} + einval;
        CHECK(read_verdict(whole(raw))->error == EINVAL);
    }
    SECTION("an echoed length beyond the message")
    {
        bytes const raw = bytes{52, 0, 0, 0, 2, 0, 0, tlvs, 7, 0, 0, 0, 9, 0, 0, 0} + einval +
                          bytes{0xff, 0xff, 0xff, 0xff, 0x1f, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0} + extack_text;
        CHECK(read_verdict(whole(raw))->error == EINVAL);
        CHECK(read_verdict(whole(raw))->text.empty());
    }
    SECTION("text without its terminating zero")
    {
        auto const raw = error_message(36 + 8, capped | tlvs, einval) + bytes{8, 0, 1, 0} + bytes{"oops", 0};
        CHECK(read_verdict(whole(raw))->text == "oops");
    }
    SECTION("an attribute beyond the message")
    {
        auto const raw = error_message(36 + 8, capped | tlvs, einval) + bytes{99, 0, 1, 0} + bytes{"oops", 0};
        CHECK(read_verdict(whole(raw))->text.empty());
    }
    SECTION("an offset of the wrong size")
    {
        auto const raw = error_message(36 + 8, capped | tlvs, einval) + bytes{6, 0, 2, 0, 40, 0, 0, 0};
        CHECK_FALSE(read_verdict(whole(raw))->offset);
    }
    SECTION("an error number that cannot be")
    {
        auto const raw = error_message(36, capped, {0, 0, 0, 0x80});
        CHECK(read_verdict(whole(raw))->error == EPROTO);
    }
    SECTION("another kind of message")
    {
        bytes const raw = bytes{20, 0, 0, 0, 0x1f, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0} + einval;
        CHECK_FALSE(read_verdict(whole(raw)));
    }
}
