// SPDX-License-Identifier: Apache-2.0
//
// Serves one client until it hangs up, or does what no client of ours does; and undoes then what it did for it.
#pragma once

#include <chrono>

#include "client.hpp"
#include "lease/daemon_channel.hpp"

namespace gpurx::gpurxd {

// How long a client may take until it has asked for something that it got.
inline constexpr std::chrono::milliseconds patience_with_strangers{5000};
// So long may a rule of a client reach a port that has become somebody else's, too. A look goes through
// the kernel's sockets, which tell of those on the port only: a quarter of a microsecond for each that there is.
inline constexpr std::chrono::milliseconds between_looks_at_ports{1000};

enum class parting : std::uint8_t {
    hung_up,
    silent,    // opened nothing in time
    not_ours,  // what came was no message of the protocol
    refused,   // what it asked first
};

// Blocks. Throws system_error for what the connection reports; everything is undone then, too.
[[nodiscard]] parting serve(detail::daemon_channel& connection, client_backend& backend,
                            std::chrono::milliseconds patience = patience_with_strangers,
                            std::chrono::milliseconds between_looks = between_looks_at_ports);

}  // namespace gpurx::gpurxd
