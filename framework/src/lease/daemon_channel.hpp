// SPDX-License-Identifier: Apache-2.0
//
// Messages of whole packets, each with at most one descriptor, over a Unix socket (SOCK_SEQPACKET).
// daemon_protocol.hpp defines their content.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fork.hpp"
#include "base/syscalls.hpp"

namespace gpurx::detail {

struct channel_message {
    std::vector<std::byte> bytes;
    unique_fd descriptor;  // empty: the message has none
    // The packet had more bytes than a message may have, or more than one descriptor. The excess is lost.
    bool excessive = false;
};

// Result of a wait: a message, the end of the connection, or neither.
enum class channel_wait : std::uint8_t { readable, closed, timeout };

// Thread safety: unsafe. Throws system_error for errors of system calls. If the peer has closed, this is EPIPE or
// ECONNRESET.
class daemon_channel {
  public:
    explicit daemon_channel(unique_fd socket) : socket_{[&] { return socket.release(); }} {}
    // Connects to the daemon's socket. `timeout`: limit for the connection, and for each response.
    daemon_channel(std::string const& path, std::chrono::milliseconds timeout);

    // Sends a message. `descriptor` -1: none. Blocks while the peer does not read; fails with EAGAIN at the timeout.
    void send(std::span<std::byte const> message, int descriptor = -1);
    // Receives a message; empty if the peer has closed.
    [[nodiscard]] std::optional<channel_message> receive();
    // Waits for a message. A negative limit means no limit.
    [[nodiscard]] channel_wait wait(std::chrono::milliseconds limit);

    // Returns whether the peer closes within `limit`. Messages that arrive meanwhile can still be received.
    [[nodiscard]] bool wait_for_end(std::chrono::milliseconds limit);
    // Ends sending: the peer then reads the end of the connection.
    void finish() noexcept;

    [[nodiscard]] int native_handle() const noexcept { return socket_.get(); }

  private:
    // Returns the events of poll(); 0 after the limit.
    [[nodiscard]] short poll_for(short events, std::chrono::milliseconds limit);

    unshared_fd socket_;  // a forked child must not keep the connection open
};

}  // namespace gpurx::detail
