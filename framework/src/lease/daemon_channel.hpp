// SPDX-License-Identifier: Apache-2.0
//
// Messages of whole packets, each with at most one descriptor, over a Unix socket (SOCK_SEQPACKET). What they say is
// daemon_protocol.hpp's business.
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
    unique_fd descriptor;  // empty: none came with it
    // More bytes than a message may have, or more than one descriptor, came; what was too much is gone.
    bool excessive = false;
};

// A wait ends with a message, the end of the connection, or nothing.
enum class channel_wait : std::uint8_t { readable, closed, timeout };

// Thread safety: unsafe. Throws system_error for what the system calls report; a peer that is gone is EPIPE or
// ECONNRESET.
class daemon_channel {
  public:
    explicit daemon_channel(unique_fd socket) : socket_{[&] { return socket.release(); }} {}
    // To the daemon's socket. `timeout`: for the daemon to take the connection, and for each answer.
    daemon_channel(std::string const& path, std::chrono::milliseconds timeout);

    // `descriptor` -1: none. Blocks while the other end does not read, but not longer than its timeout: EAGAIN.
    void send(std::span<std::byte const> message, int descriptor = -1);
    // Nothing: the other end has closed.
    [[nodiscard]] std::optional<channel_message> receive();
    // Negative: for ever.
    [[nodiscard]] channel_wait wait(std::chrono::milliseconds limit);

    // Whether the other end closes within `limit`; what it sends meanwhile stays to be received.
    [[nodiscard]] bool wait_for_end(std::chrono::milliseconds limit);
    // Nothing more will be sent: to the other end that is the end.
    void finish() noexcept;

    [[nodiscard]] int native_handle() const noexcept { return socket_.get(); }

  private:
    // The events of poll(); 0: the limit is over.
    [[nodiscard]] short poll_for(short events, std::chrono::milliseconds limit);

    unshared_fd socket_;  // a child that was forked must not keep the connection open
};

}  // namespace gpurx::detail
