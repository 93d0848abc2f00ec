// SPDX-License-Identifier: Apache-2.0
//
// The sender's side of framework/docs/tensor-stream.md, version 2: a shard's frames to a receiver, across connections.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <gpurx/ingest/hello.hpp>
#include <stdexcept>
#include <string>

#include "progress.hpp"
#include "shard.hpp"

struct totals {
    std::uint64_t frames = 0;
    std::uint64_t bytes = 0;
    std::uint64_t connections = 0;
};

// The receiver does not take this source: to connect again would not help.
struct refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class transfer {
  public:
    transfer(shard const& from, options const& wanted, totals& sum);

    // Until all is acknowledged. Throws system_error if the connection ends before that, and refused.
    void run(boost::asio::io_context& io, boost::asio::ip::tcp::socket& socket);
    // Frames of which no receiver asks again.
    [[nodiscard]] std::uint64_t acknowledged() const noexcept { return acknowledged_; }

  private:
    struct connection;

    // Begins the connection, and says with which frame.
    [[nodiscard]] std::uint64_t greet(boost::asio::ip::tcp::socket& socket);
    boost::asio::awaitable<void> send_frames(connection& to, std::uint64_t first);
    boost::asio::awaitable<void> read_acks(connection& from);

    shard const& from_;
    std::string secret_;
    gpurx::ingest::hello hello_{};
    totals& sum_;
    progress shown_;
    std::uint64_t acknowledged_ = 0;
};
