// SPDX-License-Identifier: Apache-2.0
//
// What the state machines of async_receive and async_read are told, and what they answer.
#pragma once

#include <boost/asio/cancellation_type.hpp>
#include <cstddef>
#include <cstdint>

#include <gpurx/error.hpp>

namespace gpurx::detail {

// How things stand when a machine is asked.
struct stream_facts {
    bool open = false;            // there is a connection and nobody closed the receiver
    std::size_t carried = 0;      // bytes of an earlier batch that no operation has taken yet
    std::size_t loan_budget = 0;  // bytes that may be lent before a loan has to return
    std::size_t read_budget = 0;  // bytes that a read may receive before earlier ones have to pass their streams
    // The socket has very likely nothing: to ask it before waiting would be in vain.
    bool drained = false;
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
        receive,           // a batch of at most `bytes` from the socket, to be carried
        receive_in_place,  // from the socket to the destination, at most `bytes`
        place,             // copy at most `bytes` from what is carried to the destination; may end with an error
        wait_readable,     // until the socket is readable
        wait_budget,       // until a loan returns
        wait_streams,      // until streams have passed that earlier reads were given
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
// CUDA driver has. A transport that has lost bytes to such an error reports it ever after by itself.
[[nodiscard]] error_code end_of_stream(error_code met, bool locked_up) noexcept;

}  // namespace gpurx::detail
