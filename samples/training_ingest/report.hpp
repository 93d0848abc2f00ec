// SPDX-License-Identifier: Apache-2.0
//
// What training_ingest says at the end.
#pragma once

#include <chrono>
#include <gpurx/ingest/tensor_stream.hpp>
#include <gpurx/session.hpp>
#include <string>
#include <utility>
#include <vector>

struct report {
    gpurx::transport transport{};
    std::string explanation;  // rx_session::explain()
    gpurx::stats session;
    gpurx::ingest::tensor_stream_stats stream;
    std::uint64_t rows = 0;                                   // of the batches
    std::chrono::duration<double> time{};                     // from the first batch asked for to the end
    std::chrono::duration<double> waiting{};                  // for batches: what the trainer lost
    std::vector<std::pair<std::string, std::string>> sha256;  // of tensors, by name
    std::vector<gpurx::ingest::source_error> errors;
};

void print_table(report const& report);
void print_json(report const& report);
