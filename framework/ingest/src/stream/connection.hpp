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

// For operations of which an error is a result.
inline constexpr auto outcome = asio::as_tuple(asio::use_awaitable);

class stream_state;

// Used on its strand only, but for the first three, which belong to the stream's strand: `source` is set while the
// connection waits for that.
struct connection {
    connection(asio::any_io_executor on, receiver from)
        : strand{std::move(on)},
          rx{std::move(from)},
          silence{strand},
          ack_due{strand, asio::steady_timer::time_point::max()}
    {}
    // Whoever waits for it is woken.
    void end();

    std::uint64_t number = 0;               // of the stream's connections, from 1
    std::optional<std::uint32_t> source{};  // once it is known
    bool makes_place = false;               // and so it was closed, for another
    asio::any_io_executor strand;
    receiver rx;
    asio::ip::tcp::endpoint peer{};
    bool has_spoken = false;                                             // at least one byte came
    std::optional<std::chrono::steady_clock::time_point> waits_since{};  // for its sender
    bool is_stuck = false;                                               // its sender is, and so it was closed
    asio::steady_timer silence;                                          // expires when it may be
    bool greeted = false;                                                // it began with a hello
    std::uint64_t acknowledged = 0;                                      // frames that its sender need not keep
    std::uint64_t told = 0;                                              // and knows of
    asio::steady_timer ack_due;                                          // never expires; cancelled when they change
    tensor_memory frame{};                                               // a payload, as on the wire
    device_memory crc{};                                                 // where a GPU writes a CRC32C
};

// How a connection ended: without a code after the source's last frame.
struct ending {
    error_code code{};
    diagnostics why{};
};

// Finds a peer dead that says nothing any more, not even goodbye.
void watch_peer(int socket) noexcept;

// On the connection's strand.
asio::awaitable<error_code> connect(std::shared_ptr<connection> who, asio::ip::tcp::endpoint there);

// Reads frames until the last, or until something is wrong; tells the stream how it ended.
asio::awaitable<void> receive_frames(std::shared_ptr<stream_state> stream, std::shared_ptr<connection> from);

}  // namespace gpurx::ingest::detail
