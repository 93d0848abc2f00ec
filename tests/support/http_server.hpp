// SPDX-License-Identifier: Apache-2.0
//
// A server of HTTP/1.1 that does what a test tells it to: each answer is written by a function of the test's.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace gpurx::test {

// A request, as it came.
struct http_request {
    std::string target;
    std::string text;
    std::optional<std::pair<std::uint64_t, std::uint64_t>> range;  // first and last byte
    unsigned connection = 0;                                       // counted from 0
    unsigned number = 0;                                           // of all connections, counted from 0
};

// What a function of the test's has to say something with.
class http_reply {
  public:
    explicit http_reply(boost::asio::ip::tcp::socket& socket) : socket_{socket} {}

    // As it is. What the peer does not take any more is dropped.
    void send(std::string_view bytes);
    // Byte by byte, each in a segment of its own.
    void send_slowly(std::string_view bytes);
    // The connection ends: orderly, or with a reset.
    void close();
    void reset();

  private:
    boost::asio::ip::tcp::socket& socket_;
};

class http_server {
  public:
    using handler = std::function<void(http_request const&, http_reply&)>;

    explicit http_server(handler answer);
    ~http_server();

    [[nodiscard]] std::string url(std::string_view path = "/object") const;
    [[nodiscard]] std::vector<http_request> requests() const;
    [[nodiscard]] unsigned connections() const { return connections_; }

  private:
    void accept();
    void serve(boost::asio::ip::tcp::socket& socket, unsigned connection);
    [[nodiscard]] http_request note(std::string text, unsigned connection);

    handler answer_;
    boost::asio::io_context io_{1};
    boost::asio::ip::tcp::acceptor acceptor_;
    std::atomic<unsigned> connections_ = 0;
    std::atomic<bool> ending_ = false;
    mutable std::mutex mutex_;
    std::vector<http_request> requests_;
    std::map<unsigned, int> open_;  // descriptors
    std::thread thread_;
};

// An object, and the answers that a well-kept server gives.
struct http_content {
    std::string bytes;
    std::string etag = "\"one\"";
    std::string fields = {};  // more of them, each with its line end

    // Header and body of the answer to it.
    [[nodiscard]] std::string header(http_request const& to) const;
    [[nodiscard]] std::string_view body(http_request const& to) const;
    void serve(http_request const& to, http_reply& reply) const
    {
        reply.send(header(to));
        reply.send(body(to));
    }
};

}  // namespace gpurx::test
