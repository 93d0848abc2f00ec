// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <string>

#include "stream/hello.hpp"

using namespace gpurx::ingest;
using namespace gpurx::ingest::detail;

namespace {

constexpr std::string_view secret = "a secret of 24 characters";

nonce random_of(unsigned char value)
{
    nonce result{};
    result.fill(std::byte{value});
    return result;
}

hello const said{.source = 7, .sender = 99, .has_secret = true, .resumes = true, .random = random_of(1)};
challenge const asked{random_of(2)};
welcome const answered{.says = greeting::taken, .expected = 12, .acknowledged = 10};

template <class Bytes, class T>
Bytes with(Bytes bytes, std::size_t at, T value)
{
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
}

template <class Parse>
std::string complaint_of(Parse parse)
{
    try {
        static_cast<void>(parse());
        return "nothing";
    } catch (gpurx::system_error const& error) {
        CHECK(error.code() == errc::bad_frame);
        return error.why().advice;
    }
}

}  // namespace

TEST_CASE("Messages at the begin of a connection are parsed to the encoded values")
{
    CHECK(parse_hello(encode(said)) == said);
    hello const plain{.source = 1, .sender = 2};
    CHECK(parse_hello(encode(plain)) == plain);
    CHECK(parse_challenge(encode(asked)) == asked);
    auto proven = answered;
    proven.proven.fill(std::byte{3});
    CHECK(parse_welcome(encode(proven)) == proven);
}

TEST_CASE("The version separates a hello from a frame")
{
    CHECK(is_hello(encode(said)));
    CHECK(is_hello(with(encode(said), 4, std::uint16_t{3})));
    CHECK_FALSE(is_hello(with(encode(said), 4, std::uint16_t{1})));
    CHECK_FALSE(is_hello(with(encode(said), 0, 'G')));
}

TEST_CASE("Values unknown to version 2 are refused")
{
    auto const hello_with = [](std::size_t at, auto value) {
        return complaint_of([&] { return parse_hello(with(encode(said), at, value)); });
    };
    CHECK(hello_with(4, std::uint16_t{3}) == "it has version 3 of the protocol, not 2");
    CHECK(hello_with(6, std::uint16_t{4}) == "it has a value that version 2 lacks: 0x4");
    CHECK(hello_with(6, std::uint16_t{0}) == "it has other bytes than zeros in a reserved place");
    CHECK(hello_with(12, std::uint32_t{0}) == "it has no number of the sender");
    auto const welcome_with = [](std::size_t at, auto value) {
        return complaint_of([&] { return parse_welcome(with(encode(answered), at, value)); });
    };
    CHECK(welcome_with(0, 'x') == "its answer is not of the protocol");
    CHECK(welcome_with(6, std::uint16_t{7}) == "it has a value that version 2 lacks: 0x7");
    CHECK(welcome_with(8, 1) == "it has other bytes than zeros in a reserved place");
    CHECK(welcome_with(24, std::uint64_t{13}) == "it acknowledges 13 frames, and received 12");
    CHECK(complaint_of([] { return parse_challenge(with(encode(asked), 12, 1)); }) ==
          "it has other bytes than zeros in a reserved place");
}

TEST_CASE("A proof covers the secret, the side, and every byte of the greeting")
{
    auto const proof = prove_sender(secret, said, asked);
    CHECK(are_equal(proof, prove_sender(secret, said, asked)));
    CHECK_FALSE(are_equal(proof, prove_sender("another secret, of 26 chars", said, asked)));
    CHECK_FALSE(are_equal(proof, prove_receiver(secret, said, asked, answered)));
    auto other = said;
    other.resumes = false;
    CHECK_FALSE(are_equal(proof, prove_sender(secret, other, asked)));
    CHECK_FALSE(are_equal(proof, prove_sender(secret, said, challenge{random_of(4)})));
    auto further = answered;
    ++further.expected;
    CHECK_FALSE(are_equal(prove_receiver(secret, said, asked, answered), prove_receiver(secret, said, asked, further)));
    CHECK(make_nonce() != make_nonce());
}
