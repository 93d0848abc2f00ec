// SPDX-License-Identifier: Apache-2.0
//
// One connection of a sender: its frames, read one after the other.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <gpurx/memory.hpp>
#include <gpurx/receiver.hpp>

#include "tensor_memory.hpp"

namespace gpurx::ingest::detail {

// Token for operations that return an error as a result.
inline constexpr auto outcome = asio::as_tuple(asio::use_awaitable);

class stream_state;

// Use it on its strand only. The first three members belong to the stream's strand. The stream sets `source` while the
// connection waits for it.
struct connection {
    connection(asio::any_io_executor on, receiver from)
        : strand{std::move(on)},
          rx{std::move(from)},
          silence{strand},
          ack_due{strand, asio::steady_timer::time_point::max()}
    {}
    // Ends the connection and wakes its waiting operations.
    void end();

    std::uint64_t number = 0;               // of the stream's connections, from 1
    std::optional<std::uint32_t> source{};  // set when known
    bool makes_place = false;               // it was closed to make room for another
    asio::any_io_executor strand;
    receiver rx;
    asio::ip::tcp::endpoint peer{};
    bool has_spoken = false;                                             // at least one byte has arrived
    std::optional<std::chrono::steady_clock::time_point> waits_since{};  // start of the wait for its sender
    bool is_stuck = false;                                               // it was closed because its sender is stuck
    asio::steady_timer silence;                                          // expires when the sender may be stuck
    bool greeted = false;                                                // it began with a hello
    std::uint64_t acknowledged = 0;                                      // frames that its sender need not keep
    std::uint64_t told = 0;                                              // the part of these that was sent to it
    asio::steady_timer ack_due;                                          // never expires; cancelled on changes of these
    tensor_memory frame{};                                               // a payload, as on the wire
    device_memory crc{};                                                 // memory into which a GPU writes a CRC32C
};

// Result of a connection. It has no code after the source's last frame.
struct ending {
    error_code code{};
    diagnostics why{};
};

// Enables TCP keep-alive, which detects a peer that vanished without closing the connection.
void watch_peer(int socket) noexcept;

// Connects, on the connection's strand.
asio::awaitable<error_code> connect(std::shared_ptr<connection> who, asio::ip::tcp::endpoint there);

// Reads frames until the last, or until an error. Passes the result to the stream.
asio::awaitable<void> receive_frames(std::shared_ptr<stream_state> stream, std::shared_ptr<connection> from);

}  // namespace gpurx::ingest::detail
