// SPDX-License-Identifier: Apache-2.0
#include "hello.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace gpurx::ingest::detail {

namespace {

static_assert(std::endian::native == std::endian::little, "numbers go to the wire as they are");

constexpr std::uint16_t hello_version = 2;
constexpr std::uint16_t secret_flag = 1;
constexpr std::uint16_t resumes_flag = 2;

using tag = std::array<char, 4>;
constexpr tag hello_tag{'g', 'p', 'T', 'S'};
constexpr tag challenge_tag{'g', 'p', 'T', 'C'};
constexpr tag welcome_tag{'g', 'p', 'T', 'W'};

// As on the wire: no padding, little endian.
struct wire_begin {
    tag what;
    std::uint16_t version;
    std::uint16_t value;  // flags, or a greeting
    std::uint32_t source;
    std::uint32_t sender;
};

struct wire_hello {
    wire_begin begin;
    nonce random;
};
static_assert(sizeof(wire_hello) == hello_size && sizeof(wire_hello) == challenge_size);

struct wire_welcome {
    wire_begin begin;
    std::uint64_t expected;
    std::uint64_t acknowledged;
    proof proven;
};
static_assert(sizeof(wire_welcome) == welcome_size);

[[noreturn]] void refuse_hello(std::string why)
{
    throw system_error{errc::bad_frame,
                       {.operation = "begin stream", .object = {}, .kernel_message = {}, .advice = std::move(why)}};
}

template <class Wire>
Wire read_as(std::span<std::byte const> bytes)
{
    Wire wire{};
    std::memcpy(&wire, bytes.data(), sizeof wire);
    return wire;
}

void check_begin(wire_begin const& begin, tag const& expected, std::uint32_t most_value)
{
    if (begin.what != expected)
        refuse_hello("its answer is not of the protocol");
    if (begin.version != hello_version)
        refuse_hello(fmt::format("it has version {} of the protocol, not {}", begin.version, hello_version));
    if (begin.value > most_value)
        refuse_hello(fmt::format("it has a value that version {} lacks: {:#x}", hello_version, begin.value));
}

void check_receiver(wire_begin const& begin)
{
    if (begin.source != 0 || begin.sender != 0)
        refuse_hello("it has other bytes than zeros in a reserved place");
}

bool is_zero(nonce const& bytes)
{
    return std::ranges::all_of(bytes, [](std::byte each) { return each == std::byte{}; });
}

void append_bytes(std::string& to, std::span<std::byte const> bytes)
{
    to.append(reinterpret_cast<char const*>(bytes.data()), bytes.size());
}

proof hmac_of(std::string_view secret, std::string const& text)
{
    proof result{};
    if (::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
               reinterpret_cast<unsigned char const*>(text.data()), text.size(),
               reinterpret_cast<unsigned char*>(result.data()), nullptr) == nullptr)
        throw std::bad_alloc{};
    return result;
}

}  // namespace

bool is_hello(std::span<std::byte const, hello_size> bytes) noexcept
{
    auto const begin = read_as<wire_begin>(bytes);
    return begin.what == hello_tag && begin.version >= hello_version;
}

bool is_challenge(std::span<std::byte const, challenge_size> bytes) noexcept
{
    return read_as<wire_begin>(bytes).what == challenge_tag;
}

hello parse_hello(std::span<std::byte const, hello_size> bytes)
{
    auto const wire = read_as<wire_hello>(bytes);
    check_begin(wire.begin, hello_tag, secret_flag | resumes_flag);
    auto const flags = wire.begin.value;
    hello const result{wire.begin.source, wire.begin.sender, (flags & secret_flag) != 0, (flags & resumes_flag) != 0,
                       wire.random};
    if (result.sender == 0)
        refuse_hello("it has no number of the sender");
    if (!result.has_secret && !is_zero(result.random))
        refuse_hello("it has other bytes than zeros in a reserved place");
    return result;
}

challenge parse_challenge(std::span<std::byte const, challenge_size> bytes)
{
    auto const wire = read_as<wire_hello>(bytes);
    check_begin(wire.begin, challenge_tag, 0);
    check_receiver(wire.begin);
    return {wire.random};
}

welcome parse_welcome(std::span<std::byte const, welcome_size> bytes)
{
    auto const wire = read_as<wire_welcome>(bytes);
    check_begin(wire.begin, welcome_tag, static_cast<std::uint16_t>(greeting::has_failed));
    check_receiver(wire.begin);
    if (wire.acknowledged > wire.expected)
        refuse_hello(fmt::format("it acknowledges {} frames, and received {}", wire.acknowledged, wire.expected));
    return {static_cast<greeting>(wire.begin.value), wire.expected, wire.acknowledged, wire.proven};
}

std::array<std::byte, hello_size> encode(hello const& what) noexcept
{
    auto const flags =
        static_cast<std::uint16_t>((what.has_secret ? secret_flag : 0) | (what.resumes ? resumes_flag : 0));
    return std::bit_cast<std::array<std::byte, hello_size>>(
        wire_hello{{hello_tag, hello_version, flags, what.source, what.sender}, what.random});
}

std::array<std::byte, challenge_size> encode(challenge const& what) noexcept
{
    return std::bit_cast<std::array<std::byte, challenge_size>>(
        wire_hello{{challenge_tag, hello_version, 0, 0, 0}, what.random});
}

std::array<std::byte, welcome_size> encode(welcome const& what) noexcept
{
    wire_begin const begin{welcome_tag, hello_version, static_cast<std::uint16_t>(what.says), 0, 0};
    return std::bit_cast<std::array<std::byte, welcome_size>>(
        wire_welcome{begin, what.expected, what.acknowledged, what.proven});
}

nonce make_nonce()
{
    nonce result{};
    if (::RAND_bytes(reinterpret_cast<unsigned char*>(result.data()), static_cast<int>(result.size())) != 1)
        throw std::bad_alloc{};
    return result;
}

proof prove_sender(std::string_view secret, hello const& said, challenge const& asked)
{
    std::string text{"gpurx tensor stream 2, sender"};
    append_bytes(text, encode(said));
    append_bytes(text, encode(asked));
    return hmac_of(secret, text);
}

proof prove_receiver(std::string_view secret, hello const& said, challenge const& asked, welcome const& answer)
{
    std::string text{"gpurx tensor stream 2, receiver"};
    append_bytes(text, encode(said));
    append_bytes(text, encode(asked));
    auto const answered = encode(answer);
    append_bytes(text, std::span{answered}.first<welcome_size - proof_size>());
    return hmac_of(secret, text);
}

bool are_equal(proof const& left, proof const& right) noexcept
{
    return ::CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace gpurx::ingest::detail
