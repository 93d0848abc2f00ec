// SPDX-License-Identifier: Apache-2.0
//
// The beginning of a connection of a tensor stream, as docs/tensor-stream.md specifies it: the sender gives its number,
// both prove that they know the secret if there is one, and the receiver names the frame to go on with. Without input
// or output.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest::detail {

// Sizes on the wire, in bytes.
inline constexpr std::size_t hello_size = 48;  // as the start of a frame, which may come in its place
inline constexpr std::size_t challenge_size = 48;
inline constexpr std::size_t proof_size = 32;
inline constexpr std::size_t welcome_size = 64;

using nonce = std::array<std::byte, 32>;
using proof = std::array<std::byte, proof_size>;

// The sender's first bytes.
struct hello {
    std::uint32_t source = 0;
    // Tells a sender that comes again from a second one of its number: it chooses a random one, not 0, and keeps it.
    std::uint32_t sender = 0;
    bool has_secret = false;
    // It was started again, and takes the place of another sender of its number.
    bool resumes = false;
    nonce random{};  // zeros without a secret

    friend bool operator==(hello const&, hello const&) = default;
};

// The answer of a receiver that has a secret too; the sender's proof follows.
struct challenge {
    nonce random{};

    friend bool operator==(challenge const&, challenge const&) = default;
};

// What the receiver says in the end. Others than `taken` are the last bytes of the connection.
enum class greeting : std::uint16_t {
    taken,
    secret_needed,   // the sender has none
    no_secret_here,  // the receiver has none
    wrong_secret,
    no_source,     // none of this number is received here
    other_sender,  // of this number, has sent
    has_failed,    // the source, before
};

struct welcome {
    greeting says = greeting::taken;
    std::uint64_t expected = 0;      // frames that are here: the sequence to go on with
    std::uint64_t acknowledged = 0;  // frames that will never be asked for again
    proof proven{};                  // zeros without a secret, and from who was not given the right one

    friend bool operator==(welcome const&, welcome const&) = default;
};

// Whether these are the first bytes of a hello, of whatever version from 2 on: those of a frame say version 1.
[[nodiscard]] bool is_hello(std::span<std::byte const, hello_size> bytes) noexcept;
// Whether these are those of a challenge: a welcome may come in its place.
[[nodiscard]] bool is_challenge(std::span<std::byte const, challenge_size> bytes) noexcept;

// They throw system_error, errc::bad_frame, whose advice says what is wrong.
[[nodiscard]] hello parse_hello(std::span<std::byte const, hello_size> bytes);
[[nodiscard]] challenge parse_challenge(std::span<std::byte const, challenge_size> bytes);
[[nodiscard]] welcome parse_welcome(std::span<std::byte const, welcome_size> bytes);

[[nodiscard]] std::array<std::byte, hello_size> encode(hello const& what) noexcept;
[[nodiscard]] std::array<std::byte, challenge_size> encode(challenge const& what) noexcept;
[[nodiscard]] std::array<std::byte, welcome_size> encode(welcome const& what) noexcept;

// ---- what the secret is for; throws std::bad_alloc at most ----

// 32 bytes that nobody can foretell.
[[nodiscard]] nonce make_nonce();
// HMAC-SHA-256 of everything said so far, which is different for each side.
[[nodiscard]] proof prove_sender(std::string_view secret, hello const& said, challenge const& asked);
// Of a welcome without its own proof.
[[nodiscard]] proof prove_receiver(std::string_view secret, hello const& said, challenge const& asked,
                                   welcome const& answer);
// In a time that does not depend on where they differ.
[[nodiscard]] bool are_equal(proof const& left, proof const& right) noexcept;

}  // namespace gpurx::ingest::detail
