// SPDX-License-Identifier: Apache-2.0
//
// async_receive and async_read as state machines without I/O: what they are told, and what they answer. async_receive
// asks the kernel first, and waits for it only when it has nothing, or had nothing more the last time;
// async_receive_exactly goes on until enough is carried. async_read and
// async_read_some take what is carried from an earlier batch, then batch after batch, until the destination is full, or
// enough is there.
#pragma once

#include <algorithm>
#include <boost/asio/cancellation_type.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <gpurx/error.hpp>

namespace gpurx::detail {

inline constexpr std::size_t unbounded = std::numeric_limits<std::size_t>::max();

// How things stand when a machine is asked.
struct stream_facts {
    bool open = false;            // there is a connection and nobody closed the receiver
    std::size_t carried = 0;      // bytes of earlier batches that no operation has taken yet
    bool carried_lent = false;    // the first of these batches counts as a loan: a part of it is lent
    std::size_t gathered = 0;     // what batches that were received for a loan, and are carried, will count as
    std::size_t loan_limit = 0;   // bytes that may be lent in all
    std::size_t loan_budget = 0;  // bytes that may be lent before a loan has to return
    std::size_t read_budget = 0;  // bytes that a read may receive before earlier ones have to pass their streams
    // Bytes that a read may receive beyond its own. What is lent of a batch holds all of it.
    std::size_t read_ahead = unbounded;
    // The socket has very likely nothing: to ask it before waiting would be in vain.
    bool drained = false;
    // The destination's stream has so much to do that what is enqueued now might block the thread.
    bool stream_full = false;
    error_code over;  // how the stream ended, if it has
};

// How the last action ended.
struct stream_result {
    error_code code;
    std::size_t bytes = 0;  // placed, by place and receive_in_place
    asio::cancellation_type cancelled = asio::cancellation_type::none;
};

struct stream_action {
    enum class what : std::uint8_t {
        receive,           // a batch of at most `bytes` from the socket, to be carried behind what is
        receive_in_place,  // from the socket to the destination, at most `bytes`
        place,             // copy at most `bytes` from what is carried to the destination; may end with an error
        wait_readable,     // until the socket is readable
        wait_budget,       // until a loan returns, and more than `bytes` may be lent
        wait_streams,      // until streams have passed that earlier reads were given, or have done enough of it
        wait_pages,        // until a page is free, or staging
        yield,             // let other handlers run
        done,              // complete with `code` and `bytes`
    };

    what kind = what::done;
    std::size_t bytes = 0;
    error_code code;

    friend bool operator==(stream_action const&, stream_action const&) = default;
};

// How the stream ended, if `met`, which a receive returned, is an end: a connection that the watchdog has ended looks
// like any other. No error: `met` is none, or only says what is lacking now: bytes, pages, the host's memory, what the
// CUDA driver has; or what was wrong with the call: a size, or a destination that cannot be written. A transport that
// has lost bytes to such an error reports it ever after by itself.
[[nodiscard]] error_code end_of_stream(error_code met, bool locked_up) noexcept;

// Bytes after which other handlers get a turn, however fast the sender is.
inline constexpr std::size_t bytes_in_turn = 4 << 20;

// One per operation. resume() says what to do next; call it again with the result. After done it must not be called.
// done without an error: lend `bytes` of what is carried.
class receive_fsm {
  public:
    static constexpr char const* operation = "receive from";
    static constexpr bool lends = true;

    // Receives what is there, if it is `at_least` so many bytes, but no byte beyond `at_most`.
    receive_fsm(std::size_t at_least, std::size_t at_most) noexcept : enough_{at_least}, at_most_{at_most} {}

    [[nodiscard]] stream_action resume(stream_facts const& now, stream_result const& last) noexcept;
    // Bytes that were received may be lent at once if they are enough, with no further question.
    [[nodiscard]] bool is_enough(std::size_t carried) const noexcept { return carried >= enough_; }
    [[nodiscard]] stream_action lend(std::size_t carried) const noexcept
    {
        return {.kind = stream_action::what::done, .bytes = std::min(carried, at_most_), .code = {}};
    }

  private:
    enum class point : std::uint8_t { start, received, waited };

    [[nodiscard]] stream_action attempt(stream_facts const& now) noexcept;
    [[nodiscard]] stream_action wait(stream_action::what kind, std::size_t bytes = 0) noexcept;

    std::size_t enough_;
    std::size_t at_most_;
    std::size_t end_of_turn_ = bytes_in_turn;  // in bytes carried
    point at_ = point::start;
};

// One per operation. resume() says what to do next; call it again with the result. After done it must not be called.
class read_fsm {
  public:
    static constexpr char const* operation = "read from";
    static constexpr bool lends = false;

    // How bytes get to the destination.
    enum class way : std::uint8_t {
        place,     // copied from where they were received
        in_place,  // the transport receives them there
    };

    // Places `size` bytes, or fewer if there are no more now and it is `enough`. `refused`: the error to complete with
    // instead, if any.
    read_fsm(std::size_t size, way to, error_code refused = {}) noexcept : read_fsm{size, to, refused, size} {}
    read_fsm(std::size_t size, way to, error_code refused, std::size_t enough) noexcept
        : refused_{refused}, size_{size}, enough_{enough}, way_{to}
    {}

    [[nodiscard]] stream_action resume(stream_facts const& now, stream_result const& last) noexcept;

  private:
    enum class point : std::uint8_t { start, placed, received, waited };

    [[nodiscard]] stream_action proceed(stream_facts const& now) noexcept;
    [[nodiscard]] stream_action after_receive(stream_facts const& now, stream_result const& last) noexcept;
    [[nodiscard]] stream_action after_wait(stream_facts const& now, stream_result const& last) noexcept;
    [[nodiscard]] stream_action go(point next, stream_action::what kind, std::size_t bytes = 0) noexcept;
    [[nodiscard]] stream_action done(error_code code) const noexcept;

    error_code refused_;
    std::size_t size_;
    std::size_t enough_;
    std::size_t placed_ = 0;
    std::size_t in_turn_ = 0;
    way way_;
    point at_ = point::start;
};

}  // namespace gpurx::detail
