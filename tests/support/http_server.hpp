// SPDX-License-Identifier: Apache-2.0
//
// A server of HTTP/1.1, with TLS or without, that does what a test tells it to: each answer is written by a function of
// the test's.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
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

#include "certificates.hpp"

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
    using writer = std::function<void(std::string_view)>;

    // `pending`: what has been read of the next request.
    http_reply(boost::asio::ip::tcp::socket& socket, writer write, std::string const& pending)
        : socket_{socket}, write_{std::move(write)}, pending_{pending}
    {}

    // As it is. What the peer does not take any more is dropped.
    void send(std::string_view bytes);
    // Below TLS, if there is any.
    void send_raw(std::string_view bytes);
    // Byte by byte, each in a segment of its own.
    void send_slowly(std::string_view bytes);
    // Says 200, and is a tunnel to that port of this host from then on.
    void tunnel_to(std::uint16_t port);
    // The connection ends: orderly, or with a reset.
    void close();
    void reset();
    // Whether the next request has come already.
    [[nodiscard]] bool another_waits() const;

  private:
    boost::asio::ip::tcp::socket& socket_;
    writer write_;
    std::string const& pending_;
};

// How a server speaks TLS.
struct tls_manner {
    identity own;
    std::string clients_from = {};  // an authority: clients have to show a certificate of its
    bool only_old = false;          // TLS 1.1 at most
    bool stalls = false;            // accepts, and says nothing
    // Bytes in the place of a handshake, for some connections; empty: none.
    std::function<std::string(unsigned connection)> spoils = {};
};

class http_server {
  public:
    using handler = std::function<void(http_request const&, http_reply&)>;

    explicit http_server(handler answer, std::optional<tls_manner> tls = std::nullopt,
                         boost::asio::ip::tcp::endpoint const& at = {boost::asio::ip::address_v4::loopback(), 0});
    ~http_server();

    [[nodiscard]] std::string url(std::string_view path = "/object", std::string_view host = "127.0.0.1") const;
    [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
    [[nodiscard]] std::vector<http_request> requests() const;
    [[nodiscard]] unsigned connections() const { return connections_; }

  private:
    void accept();
    void serve(boost::asio::ip::tcp::socket& socket, unsigned connection);
    void serve_tls(boost::asio::ip::tcp::socket& socket, unsigned connection);
    template <class Stream>
    void converse(Stream& stream, boost::asio::ip::tcp::socket& socket, unsigned connection);
    [[nodiscard]] http_request note(std::string text, unsigned connection);

    handler answer_;
    std::optional<tls_manner> tls_;
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
