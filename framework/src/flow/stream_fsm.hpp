// SPDX-License-Identifier: Apache-2.0
//
// async_receive and async_read as state machines without I/O. Input: facts and results; output: actions. async_receive
// first asks the kernel, and waits only if the kernel has no bytes, or had no more the last time. async_receive_exactly
// continues until it carries enough bytes. async_read and async_read_some take bytes carried from an earlier batch,
// then further batches, until the destination is full or has enough.
#pragma once

#include <algorithm>
#include <boost/asio/cancellation_type.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <gpurx/error.hpp>

namespace gpurx::detail {

inline constexpr std::size_t unbounded = std::numeric_limits<std::size_t>::max();

// The state of the flow when a machine resumes.
struct stream_facts {
    bool open = false;            // there is a connection, and the receiver is not closed
    std::size_t carried = 0;      // bytes of earlier batches that no operation has taken yet
    bool carried_lent = false;    // the first of these batches counts as a loan: a part is lent
    std::size_t gathered = 0;     // charge of carried batches that were received for a loan
    std::size_t loan_limit = 0;   // bytes that may be lent in all
    std::size_t loan_budget = 0;  // bytes that may be lent before a loan has to return
    std::size_t read_budget = 0;  // bytes that a read may receive before streams of earlier reads pass
    // Bytes that a read may receive beyond its own. A loan of a part of a batch holds the whole batch.
    std::size_t read_ahead = unbounded;
    // The socket very likely has no bytes, so wait without asking it.
    bool drained = false;
    // The destination's stream has so much queued work that another command might block the thread.
    bool stream_full = false;
    error_code over;  // the error that ended the stream, if any
};

// The result of the last action.
struct stream_result {
    error_code code;
    std::size_t bytes = 0;  // placed, by place and receive_in_place
    asio::cancellation_type cancelled = asio::cancellation_type::none;
};

struct stream_action {
    enum class what : std::uint8_t {
        receive,           // append a batch of at most `bytes` from the socket to the carried ones
        receive_in_place,  // from the socket to the destination, at most `bytes`
        place,             // copy at most `bytes` carried bytes to the destination; may fail
        wait_readable,     // until the socket is readable
        wait_budget,       // until a loan returns, and more than `bytes` may be lent
        wait_streams,      // until streams of earlier reads have passed, or have done enough
        wait_pages,        // until a page is free, or staging
        yield,             // let other handlers run
        done,              // complete with `code` and `bytes`
    };

    what kind = what::done;
    std::size_t bytes = 0;
    error_code code;

    friend bool operator==(stream_action const&, stream_action const&) = default;
};

// Returns the error that ended the stream, for the result `met` of a receive. The end of a connection by the watchdog
// looks like any other; `locked_up` distinguishes it. Returns no error if `met` does not end the stream. That is so if
// `met` is no error, if a resource is missing now (bytes, pages, host memory, resources of the CUDA driver), or if the
// call was wrong (a size, or a destination that is not writable). If a transport loses bytes because of such an error,
// it reports the error itself from then on.
[[nodiscard]] error_code end_of_stream(error_code met, bool locked_up) noexcept;

// Bytes after which other handlers run, however fast the sender is.
inline constexpr std::size_t bytes_in_turn = 4 << 20;

// One per operation. resume() returns the next action; call it again with the result. Do not call it after done.
// done without an error: lend `bytes` of the carried bytes.
class receive_fsm {
  public:
    static constexpr char const* operation = "receive from";
    static constexpr bool lends = true;

    // Receives at least `at_least` and at most `at_most` bytes.
    receive_fsm(std::size_t at_least, std::size_t at_most) noexcept : enough_{at_least}, at_most_{at_most} {}

    [[nodiscard]] stream_action resume(stream_facts const& now, stream_result const& last) noexcept;
    // If enough bytes were received, lends them at once, without another call of the kernel.
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

// One per operation. resume() returns the next action; call it again with the result. Do not call it after done.
class read_fsm {
  public:
    static constexpr char const* operation = "read from";
    static constexpr bool lends = false;

    // Ways to the destination.
    enum class way : std::uint8_t {
        place,     // a copy of the received bytes
        in_place,  // the transport receives into the destination
    };

    // Places `size` bytes. If no more bytes are available now, at least `enough` suffice. `refused`: if set, the error
    // to complete with instead.
    read_fsm(std::size_t size, way to, error_code refused = {}) noexcept : read_fsm{size, to, refused, size} {}
    read_fsm(std::size_t size, way to, error_code refused, std::size_t enough) noexcept
        : refused_{refused}, size_{size}, enough_{enough}, way_{to}
    {}

    [[nodiscard]] stream_action resume(stream_facts const& now, stream_result const& last) noexcept;
    // Returns the bytes that the operation waits for. It can do nothing with fewer; 0: any number is enough.
    [[nodiscard]] std::size_t missing() const noexcept { return enough_ == size_ ? size_ - placed_ : 0; }

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
