// SPDX-License-Identifier: Apache-2.0
//
// The command line of gpurx-perf.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <gpurx/session.hpp>

namespace gpurx::perf {

// One way to receive; two of them can be compared.
struct setting {
    std::string name;  // the options that make it, for people
    rx_session_options session = {};
    std::uint64_t memory = 64 << 20;
    std::optional<int> gpu = {};  // nothing: host memory
    bool loans = false;           // async_receive, else async_read of whole messages
};

struct server_options {
    std::string address = "0.0.0.0";
    std::uint16_t port = 5210;
    std::vector<setting> settings;  // of round 0, 1, …, and again from the first
    unsigned rounds = 0;            // 0: until it is told to end
    bool verify = false;
};

struct client_options {
    std::string host;
    std::string port;
    unsigned flows = 1;
    std::uint32_t message_size = 256 << 10;
    unsigned window = 4;  // messages of a flow that are not acknowledged
    std::chrono::milliseconds warm_up{1000};
    std::chrono::milliseconds measured{5000};
    unsigned rounds = 1;
    std::string json;  // a file; "-": standard output, in the place of the table
};

enum exit_status : int { measured = 0, failed = 1, bad_usage = 2, wrong_bytes = 3 };

using options = std::variant<server_options, client_options>;

// Nothing, with the exit status: --help or --version was printed, or what is wrong.
[[nodiscard]] std::optional<options> parse_command_line(int argc, char const* const* argv, int& exit_code);

}  // namespace gpurx::perf
