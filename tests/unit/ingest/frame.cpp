// SPDX-License-Identifier: Apache-2.0
//
// The wire format: what is sent is what is read, and nothing else is taken.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "stream/frame.hpp"

using namespace gpurx::ingest;
using namespace gpurx::ingest::detail;

namespace {

frame_head image_head()
{
    return {.source = 3,
            .sequence = 7,
            .rows = 10,
            .tensors = {{"image", dtype::u8, {28, 28}}, {"label", dtype::i64, {}}, {"packed", dtype::f4_e2m1, {6}}}};
}

template <class T>
std::vector<std::byte> patched(frame_head const& head, std::size_t offset, T value)
{
    auto bytes = encode(head);
    REQUIRE(offset + sizeof value <= bytes.size());
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    return bytes;
}

// What is said of bytes that are no head.
std::string complaint(std::span<std::byte const> head, frame_limits const& limits = {}, errc expected = errc::bad_frame)
{
    try {
        static_cast<void>(count_tensors(head.first<frame_start_size>(), limits));
        static_cast<void>(parse_head(head, limits));
    } catch (gpurx::system_error const& error) {
        CHECK(error.code() == expected);
        return error.why().advice;
    }
    return "nothing";
}

std::string complaint(frame_head const& head)
{
    try {
        static_cast<void>(encode(head));
    } catch (gpurx::system_error const& error) {
        CHECK(error.code() == errc::bad_frame);
        return error.why().advice;
    }
    return "nothing";
}

// Offsets of the fields.
enum field : std::size_t {
    magic = 0,
    version = 4,
    flags = 6,
    tensors = 12,
    sequence = 16,
    rows = 24,
    payload_size = 32,
    payload_crc = 40,
    head_crc = 44,
    name = 48,
    type = 64,
    dimensions = 66,
    zero = 68,
    shape = 72,
};

constexpr std::uint64_t huge = std::uint64_t{1} << 63;

}  // namespace

TEST_CASE("An encoded head is parsed to the same values")
{
    auto head = image_head();
    head.wants_ack = GENERATE(false, true);
    head.is_last = GENERATE(false, true);
    head.has_crc = GENERATE(false, true);
    head.begins = GENERATE(false, true);
    head.sequence = head.begins ? 0 : head.sequence;
    head.payload_crc = head.has_crc ? 0x12345678 : 0;
    auto const bytes = encode(head);
    CHECK(bytes.size() == frame_start_size + 3 * frame_tensor_size);
    CHECK(count_tensors(std::span{bytes}.first<frame_start_size>()) == 3);
    CHECK(parse_head(bytes) == head);
    CHECK(head.payload_size() == 10 * (28 * 28 + 8 + 3));
}

TEST_CASE("A head on the wire matches the specification, byte by byte")
{
    auto const bytes = encode({.source = 0x01020304,
                               .sequence = 0x1112131415161718,
                               .rows = 2,
                               .wants_ack = true,
                               .tensors = {{"x", dtype::f32, {3}}}});
    std::string text;
    for (auto const byte : bytes) {
        constexpr char digits[] = "0123456789abcdef";
        text += digits[static_cast<unsigned>(byte) >> 4];
        text += digits[static_cast<unsigned>(byte) & 15];
    }
    CHECK(text ==
          "67705453"  // gpTS
          "0100"
          "0100"              // version, flags
          "04030201"          // source
          "01000000"          // tensors
          "1817161514131211"  // sequence
          "0200000000000000"  // rows
          "1800000000000000"  // bytes of the payload
          "00000000"
          "00000000"
          "78000000000000000000000000000000"  // name
          "2002"
          "0100"
          "00000000"  // dtype, dimensions
          "0300000000000000"
          "0000000000000000"
          "0000000000000000"
          "0000000000000000"
          "0000000000000000"
          "0000000000000000"
          "0000000000000000");
}

TEST_CASE("The last frame may be empty, and only the last")
{
    frame_head const end{.sequence = 4, .is_last = true};
    CHECK(parse_head(encode(end)) == end);
    CHECK(end.payload_size() == 0);
    CHECK(complaint(frame_head{.sequence = 4}) == "it has no rows, and is not a last frame");
    CHECK(complaint({.rows = 1}) == "it has 1 rows of 0 tensors");
    CHECK(complaint({.tensors = {{"x", dtype::u8, {}}}}) == "it has 0 rows of 1 tensors");
}

TEST_CASE("A payload whose size cannot be counted has none")
{
    frame_head const head{.rows = std::uint64_t{1} << 62, .tensors = {{"x", dtype::f32, {}}}};
    CHECK_THROWS_AS(head.payload_size(), gpurx::system_error);
}

TEST_CASE("Every field that lies is found out")
{
    auto const head = image_head();
    CHECK(complaint(patched(head, magic, 'H')) == R"(it begins with "HpTS", not with "gpTS")");
    CHECK(complaint(patched(head, magic, '\n')) == R"(it begins with ".pTS", not with "gpTS")");
    CHECK(complaint(patched(head, version, std::uint16_t{2})) == "its version is 2, not 1");
    CHECK(complaint(patched(head, flags, std::uint16_t{32})) == "it has flags that version 1 lacks: 0x20");
    CHECK(complaint(patched(head, flags, std::uint16_t{8})) == "it has the flag of a first frame, and is frame 7");
    CHECK(complaint(patched(head, tensors, ~std::uint32_t{0})) == "it has 4294967295 tensors, more than 64");
    CHECK(complaint(patched(head, tensors, std::uint32_t{2})) ==
          "the length of its head does not fit its number of tensors");
    CHECK(complaint(patched(head, rows, huge)) == "the size of its 9223372036854775808 rows overflows 64 bits");
    CHECK(complaint(patched(head, rows, std::uint64_t{9})) == "its payload has 7950 bytes, and 9 rows have 7155");
    CHECK(complaint(patched(head, payload_size, huge)) ==
          "its payload has 9223372036854775808 bytes, more than 268435456");
    CHECK(complaint(patched(head, payload_size, std::uint64_t{7949})) ==
          "its payload has 7949 bytes, and 10 rows have 7950");
    CHECK(complaint(patched(head, payload_crc, 1)) == "it has a CRC32C, but not the flag for it");
    CHECK(complaint(patched(head, head_crc, 1)) == "it has a CRC32C, but not the flag for it");
    CHECK(complaint(patched(head, name, ' ')) == R"(the name of a tensor is " mage...........")");
    CHECK(complaint(patched(head, name + 7, 'x')) == R"(the name of a tensor is "image..x........")");
    CHECK(complaint(patched(head, name, std::array<char, 16>{"0123456789abcde"})) == "nothing");
    CHECK(complaint(patched(head, name, std::array<char, 16>{'\0'})) ==
          R"(the name of a tensor is "................")");
    CHECK(complaint(patched(head, name, std::array<char, 16>{"label"})) == "two tensors are named label");
    CHECK(complaint(patched(head, type, std::uint16_t{0x0109})) == "tensor image has an unknown dtype: 0x0109");
    CHECK(complaint(patched(head, dimensions, std::uint16_t{8})) ==
          "tensor image has 8 dimensions besides the rows, more than 7");
    CHECK(complaint(patched(head, dimensions, std::uint16_t{1})) ==
          "tensor image has other bytes than zeros in a reserved place");
    CHECK(complaint(patched(head, zero, 1)) == "tensor image has other bytes than zeros in a reserved place");
    CHECK(complaint(patched(head, shape, huge)) == "the size of a row of tensor image overflows 64 bits");
    CHECK(complaint(patched(head, shape, std::uint64_t{0})) == "tensor image has a dimension of 0");
    CHECK(complaint(patched(head, shape + 2 * frame_tensor_size, std::uint64_t{5})) ==
          "a row of tensor packed is not a whole number of bytes");
    // More than a signed number counts.
    CHECK(complaint({.rows = huge, .tensors = {{"x", dtype::u8, {}}}}) ==
          "the size of its 9223372036854775808 rows overflows 64 bits");
    CHECK(complaint({.rows = 1, .tensors = {{"x", dtype::f4_e2m1, {huge / 4}}}}) ==
          "the size of a row of tensor x overflows 64 bits");
    // Each row can be counted, but not their sum.
    auto const sum = patched(head, shape, std::uint64_t{1} << 55);
    CHECK(complaint(sum) == "the size of its 10 rows overflows 64 bits");
}

TEST_CASE("Nothing is encoded that would not be taken")
{
    auto const with = [](tensor_spec spec) { return frame_head{.rows = 1, .tensors = {std::move(spec)}}; };
    CHECK(complaint(with({"0123456789abcdef", dtype::u8, {}})) == R"(the name of a tensor is "0123456789abcdef")");
    CHECK(complaint(with({"", dtype::u8, {}})) == R"(the name of a tensor is "")");
    CHECK(complaint(with({"x", dtype::u8, std::vector<std::uint64_t>(8, 1)})) ==
          "tensor x has an unknown dtype, or too many dimensions");
    CHECK(complaint(with({"x", static_cast<dtype>(1), {8}})) ==
          "tensor x has an unknown dtype, or too many dimensions");
    CHECK(complaint(with({"x", dtype::u8, {0}})) == "tensor x has a dimension of 0");
}

TEST_CASE("Limits are the receiver's to choose")
{
    auto const bytes = encode(image_head());
    CHECK(complaint(bytes, {.frame_size = 7950, .tensors = 3}) == "nothing");
    CHECK(complaint(bytes, {.frame_size = 7949}) == "its payload has 7950 bytes, more than 7949");
    CHECK(complaint(bytes, {.tensors = 2}) == "it has 3 tensors, more than 2");
}

TEST_CASE("A head with a CRC32C has not one bit that may change")
{
    auto head = image_head();
    head.has_crc = true;
    head.payload_crc = 0xdeadbeef;
    auto const right = encode(head);
    for (std::size_t bit = 0; bit < 8 * right.size(); ++bit) {
        auto wrong = right;
        wrong[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
        INFO(bit);
        bool refused = false;
        try {
            static_cast<void>(parse_head(wrong));
        } catch (gpurx::system_error const&) {
            refused = true;
        }
        CHECK(refused);
    }
    auto wrong = right;
    wrong[sequence] ^= std::byte{1};
    CHECK(complaint(wrong, {}, errc::wrong_checksum).starts_with("the CRC32C of the head of frame 6 is 0x"));
}

TEST_CASE("A head that is cut off is none")
{
    auto const bytes = encode(image_head());
    for (std::size_t size = 0; size < bytes.size(); ++size)
        CHECK_THROWS_AS(parse_head(std::span{bytes}.first(size)), gpurx::system_error);
}

TEST_CASE("An acknowledgement is the sequence, little endian")
{
    auto const ack = encode_ack(0x0102);
    CHECK(ack[0] == std::byte{2});
    CHECK(ack[1] == std::byte{1});
    CHECK(parse_ack(ack) == 0x0102);
}
