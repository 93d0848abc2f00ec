// SPDX-License-Identifier: Apache-2.0
//
// The loops that are compared: two in C, and the library's. Each receives from one connection, and gives every page
// back. All of their functions throw std::system_error, and std::runtime_error where bytes missed the memory.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <gpurx/gpurx.hpp>
#include <utility>

#include "../rfc/drain.h"
#include "baseline.h"

namespace bench {

struct loop_counts {
    std::uint64_t fragments = 0;
    std::uint64_t receive_calls = 0;
    std::uint64_t release_calls = 0;
};

class devmem_c_loop {
  public:
    explicit devmem_c_loop(int socket);
    devmem_c_loop(devmem_c_loop const&) = delete;
    devmem_c_loop& operator=(devmem_c_loop const&) = delete;
    ~devmem_c_loop();

    void run(std::uint64_t bytes);
    [[nodiscard]] loop_counts counts() const;

  private:
    baseline loop_;
};

class zcrx_c_loop {
  public:
    zcrx_c_loop(zcrx_loop& ring, int socket) : ring_{ring}, socket_{socket} {}

    void run(std::uint64_t bytes);
    [[nodiscard]] loop_counts counts() const;

  private:
    zcrx_loop& ring_;
    int socket_;
};

class gpurx_loop {
  public:
    gpurx_loop(boost::asio::io_context& io, gpurx::rx_session& session, boost::asio::ip::tcp::socket socket)
        : io_{io}, receiver_{io, session, std::move(socket)}
    {}

    void run(std::uint64_t bytes);
    // The same. Returns the instructions of the calls that give the pages back.
    [[nodiscard]] std::uint64_t run_and_clock_releases(std::uint64_t bytes);
    [[nodiscard]] loop_counts counts() const;

  private:
    void receive();
    void release(gpurx::rx_buffer loan);

    boost::asio::io_context& io_;
    gpurx::receiver receiver_;
    std::uint64_t remaining_ = 0;
    std::uint64_t release_instructions_ = 0;
    bool clocks_releases_ = false;
};

}  // namespace bench
