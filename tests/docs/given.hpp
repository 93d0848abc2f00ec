// SPDX-License-Identifier: Apache-2.0
//
// What the examples of the guides take as given: each becomes a member of a struct that derives from this.
#pragma once

#include <array>
#include <boost/asio.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

#include <gpurx/gpurx.hpp>
#include <gpurx/ingest/buffer.hpp>
#include <gpurx/ingest/http.hpp>
#include <gpurx/ingest/s3.hpp>
#include <gpurx/ingest/safetensors.hpp>

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;

struct frame_header {
    std::uint64_t bytes;
    std::uint64_t sequence;
};

void consume(std::span<gpurx::fragment const> fragments);
void consume(gpurx::rx_buffer loan);
void consume(gpurx::device_span tensor, gpurx::cuda_stream_ref stream);
void scatter(std::span<gpurx::fragment const> fragments, gpurx::cuda_stream_ref stream);
asio::awaitable<void> ingest(gpurx::receiver flow);

// One thread for each of several contexts.
struct contexts : asio::thread_pool {
    asio::any_io_executor next();
};

struct given {
    asio::any_io_executor executor;
    contexts& pool;
    gpurx::rx_session& session;
    gpurx::rx_session& nic;
    gpurx::acceptor& acceptor;
    gpurx::receiver& rx;
    tcp::endpoint peer;
    gpurx::device_span tensor;
    gpurx::device_span body;
    frame_header header;
    gpurx::cuda_stream_ref stream;
    gpurx::cuda_stream_ref compute;
};
