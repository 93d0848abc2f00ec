// SPDX-License-Identifier: Apache-2.0
//
// The beginning of a connection of a tensor stream (docs/tensor-stream.md). The sender sends its number. Both sides
// prove that they know the secret, if there is one. The receiver names the frame to continue with. No I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest::detail {

// Sizes on the wire, in bytes.
inline constexpr std::size_t hello_size = 48;  // that of the start of a frame, which may come instead
inline constexpr std::size_t challenge_size = 48;
inline constexpr std::size_t proof_size = 32;
inline constexpr std::size_t welcome_size = 64;

using nonce = std::array<std::byte, 32>;
using proof = std::array<std::byte, proof_size>;

// The sender's first bytes.
struct hello {
    std::uint32_t source = 0;
    // Distinguishes a sender that reconnects from a second sender with its number. The sender chooses a random value,
    // not 0, and keeps it.
    std::uint32_t sender = 0;
    bool has_secret = false;
    // The sender was restarted, and replaces another sender with its number.
    bool resumes = false;
    nonce random{};  // zeros without a secret

    friend bool operator==(hello const&, hello const&) = default;
};

// The response of a receiver that also has a secret. The sender's proof follows.
struct challenge {
    nonce random{};

    friend bool operator==(challenge const&, challenge const&) = default;
};

// The receiver's result. Values other than `taken` are the last bytes of the connection.
enum class greeting : std::uint16_t {
    taken,
    secret_needed,   // the sender has none
    no_secret_here,  // the receiver has none
    wrong_secret,
    no_source,     // the receiver has no source of this number
    other_sender,  // another sender of this number has sent
    has_failed,    // the source has failed earlier
};

struct welcome {
    greeting says = greeting::taken;
    std::uint64_t expected = 0;      // number of received frames: the sequence to continue with
    std::uint64_t acknowledged = 0;  // number of frames that are never requested again
    proof proven{};                  // zeros without a secret, or after a wrong proof

    friend bool operator==(welcome const&, welcome const&) = default;
};

// Returns whether these are the first bytes of a hello, of any version from 2 on. A frame has version 1.
[[nodiscard]] bool is_hello(std::span<std::byte const, hello_size> bytes) noexcept;
// Returns whether these are those of a challenge: a welcome may come instead.
[[nodiscard]] bool is_challenge(std::span<std::byte const, challenge_size> bytes) noexcept;

// They throw system_error, errc::bad_frame, with the reason in its advice.
[[nodiscard]] hello parse_hello(std::span<std::byte const, hello_size> bytes);
[[nodiscard]] challenge parse_challenge(std::span<std::byte const, challenge_size> bytes);
[[nodiscard]] welcome parse_welcome(std::span<std::byte const, welcome_size> bytes);

[[nodiscard]] std::array<std::byte, hello_size> encode(hello const& what) noexcept;
[[nodiscard]] std::array<std::byte, challenge_size> encode(challenge const& what) noexcept;
[[nodiscard]] std::array<std::byte, welcome_size> encode(welcome const& what) noexcept;

// ---- cryptography of the secret; throws only std::bad_alloc ----

// Returns 32 unpredictable bytes.
[[nodiscard]] nonce make_nonce();
// Returns the HMAC-SHA-256 of all bytes exchanged so far. It differs for each side.
[[nodiscard]] proof prove_sender(std::string_view secret, hello const& said, challenge const& asked);
// Of a welcome without its own proof.
[[nodiscard]] proof prove_receiver(std::string_view secret, hello const& said, challenge const& asked,
                                   welcome const& answer);
// Compares in a time that does not depend on the position of a difference.
[[nodiscard]] bool are_equal(proof const& left, proof const& right) noexcept;

}  // namespace gpurx::ingest::detail
