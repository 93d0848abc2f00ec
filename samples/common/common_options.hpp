// SPDX-License-Identifier: Apache-2.0
//
// Options of several samples: NIC, transport, memory, address of the other end, secret, hash.
#pragma once

#include <cstddef>
#include <gpurx/memory.hpp>
#include <gpurx/session.hpp>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

// HOST:PORT, as people write it.
struct endpoint_name {
    std::string host;
    std::string port;
};

// Parses HOST:PORT; a v6 address is in brackets. Throws CLI::ValidationError, for CLI11, with the expected form.
endpoint_name endpoint_argument(std::string const& text);

struct session_choice {
    gpurx::rx_session_options session;
    int gpu = -1;  // the device's CUDA ordinal; -1: host memory
    std::size_t memory_size = std::size_t{64} << 20;
};

// --interface, --queues, --transport, --allow-zcrx, --memory, --memory-size, --rx-page-size. `chosen` must outlive
// `app`.
void add_session_options(CLI::App& app, session_choice& chosen);

// Allocates memory of the chosen kind. Throws gpurx::system_error.
gpurx::device_memory allocate(session_choice const& chosen, std::size_t bytes);
// Opens the session, and prints its notices to standard error. Nothing: it failed, and the reason is printed there.
std::optional<gpurx::rx_session> open_session(session_choice const& chosen);

// --secret-file, for both ends of a tensor stream. The content of the file, without the end of its last line, becomes
// `secret`, which must outlive `app`. All users of the machine could read a secret on the command line.
void add_secret_option(CLI::App& app, std::string& secret);

// --expect-sha256, for samples that write the received bytes. `expected`, in lower case, must outlive `app`. `help`
// names the hashed bytes.
CLI::Option* add_expected_sha256(CLI::App& app, std::string& expected, std::string const& help);
