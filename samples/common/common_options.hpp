// SPDX-License-Identifier: Apache-2.0
//
// Options that several samples have: which NIC, which transport, which memory, where the other end is, a secret, a
// hash.
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

// A v6 address stands in brackets. For CLI11: throws CLI::ValidationError, which says what was expected.
endpoint_name endpoint_argument(std::string const& text);

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

// --secret-file, of both ends of a tensor stream. What the file holds, less the end of its last line, becomes `secret`,
// which must outlive `app`. On the command line a secret would be everybody's to read.
void add_secret_option(CLI::App& app, std::string& secret);

// --expect-sha256, of samples that write out what they received. `expected`, in lower case, must outlive `app`. `help`
// says whose it is.
CLI::Option* add_expected_sha256(CLI::App& app, std::string& expected, std::string const& help);
