// SPDX-License-Identifier: Apache-2.0
//
// Answers GET /metrics over HTTP/1.1, one request a connection. Whoever asks slowly, much, or in masses is bounded: in
// the bytes of a request, in the time that a connection lives, and in how many there are; the oldest makes room.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gpurx/error.hpp>

#include "base/syscalls.hpp"

namespace gpurx::gpurxd {

struct scrape_limits {
    std::size_t request_bytes = 4096;
    std::chrono::milliseconds lifetime{5000};
    std::size_t connections = 16;
    // As old may be what is answered: who asks more often costs nothing more.
    std::chrono::milliseconds age{1000};
};

class scrape;

class scrapes {
  public:
    // `page` writes what is answered. Each of `listening` is a stream socket.
    scrapes(asio::io_context& io, std::vector<detail::unique_fd> listening, std::function<std::string()> page,
            scrape_limits limits = {});
    scrapes(scrapes const&) = delete;
    scrapes& operator=(scrapes const&) = delete;
    ~scrapes();

  private:
    void wait_at(asio::posix::stream_descriptor& door);
    void take(int door);
    [[nodiscard]] std::shared_ptr<std::string const> page_now();

    asio::io_context& io_;
    std::function<std::string()> page_;
    scrape_limits limits_;
    std::vector<std::unique_ptr<asio::posix::stream_descriptor>> doors_;
    std::deque<std::weak_ptr<scrape>> open_;  // the oldest first
    std::shared_ptr<std::string const> last_page_;
    std::chrono::steady_clock::time_point last_page_time_;
};

}  // namespace gpurx::gpurxd
