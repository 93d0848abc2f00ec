// SPDX-License-Identifier: Apache-2.0
//
// Sockets that hold all that comes before the first byte of it is received.
#pragma once

#include <cstdint>

namespace bench {

inline constexpr std::uint16_t port = 9099;  // as in guest.sh

// On `port`, for connections with a receive window of any size. Throws std::system_error.
int listen_with_large_buffer();

// Until so many bytes are in the socket. Throws std::system_error, and std::runtime_error after a minute.
void wait_until_queued(int socket, std::uint64_t bytes);

}  // namespace bench
