// SPDX-License-Identifier: Apache-2.0
//
// The command line of training_ingest.
#pragma once

#include <chrono>
#include <gpurx/ingest/tensor_stream.hpp>
#include <optional>
#include <vector>

#include "endpoint.hpp"
#include "session_options.hpp"

struct options {
    std::vector<endpoint_name> listen;
    std::vector<endpoint_name> connect;
    session_choice nic;
    gpurx::ingest::tensor_stream_options stream;

    std::chrono::microseconds train_time{0};  // that each batch is worked on, for want of a model
    unsigned threads = 1;
    bool sha256 = false;  // of each tensor's bytes
    bool json = false;
};

// Empty: `exit_code` says how the program ends (help was asked for, or the line is wrong; printed already).
std::optional<options> parse_command_line(int argc, char** argv, int& exit_code);
