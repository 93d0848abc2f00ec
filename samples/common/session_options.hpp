// SPDX-License-Identifier: Apache-2.0
//
// Which NIC, which transport, which memory: the options that every sample has which receives.
#pragma once

#include <cstddef>
#include <gpurx/memory.hpp>
#include <gpurx/session.hpp>
#include <optional>

namespace CLI {
class App;
}

struct session_choice {
    gpurx::rx_session_options session;
    int gpu = -1;  // the device's CUDA ordinal; -1: host memory
    std::size_t memory_size = std::size_t{64} << 20;
};

// --interface, --queues, --transport, --memory, --memory-size, --rx-page-size. `chosen` must outlive `app`.
void add_session_options(CLI::App& app, session_choice& chosen);

// Memory of the kind that was chosen. Throws gpurx::system_error.
gpurx::device_memory allocate(session_choice const& chosen, std::size_t bytes);
// Notices go to standard error, and so does the reason if there is none.
std::optional<gpurx::rx_session> open_session(session_choice const& chosen);
