// SPDX-License-Identifier: Apache-2.0
//
// Command line and final report of training_ingest.
#pragma once

#include <chrono>
#include <gpurx/ingest/tensor_stream.hpp>
#include <gpurx/session.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common_options.hpp"

struct options {
    std::vector<endpoint_name> listen;
    std::vector<endpoint_name> connect;
    session_choice nic;
    gpurx::ingest::tensor_stream_options stream;

    std::chrono::microseconds train_time{0};  // time of work for each batch, instead of a model
    unsigned threads = 1;
    bool sha256 = false;  // of each tensor's bytes
    bool json = false;
};

// Empty: `exit_code` says how the program ends (help was asked for, or the line is wrong; printed already).
std::optional<options> parse_command_line(int argc, char** argv, int& exit_code);

struct report {
    gpurx::transport transport{};
    std::string explanation;  // rx_session::explain()
    gpurx::stats session;
    gpurx::ingest::tensor_stream_stats stream;
    std::uint64_t rows = 0;                                   // of the batches
    std::chrono::duration<double> time{};                     // from the first batch asked for to the end
    std::chrono::duration<double> waiting{};                  // time for which the trainer waited for batches
    std::vector<std::pair<std::string, std::string>> sha256;  // of tensors, by name
    std::vector<gpurx::ingest::source_error> errors;
};

void print_table(report const& report);
void print_json(report const& report);
