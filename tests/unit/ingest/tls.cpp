// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/ingest/error.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "certificates.hpp"
#include "net/tls.hpp"

namespace gpurx::ingest::detail {

namespace {

using Catch::Matchers::ContainsSubstring;

// Two ends that do not block.
struct connected {
    connected() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0); }
    connected(connected const&) = delete;
    connected& operator=(connected const&) = delete;
    ~connected()
    {
        ::close(ends[0]);
        hang_up();
    }

    // With what it was sent still unread, as far as it was.
    void hang_up()
    {
        if (ends[1] >= 0)
            ::close(ends[1]);
        ends[1] = -1;
    }

    std::array<int, 2> ends{};
};

// A server that only talks to those whom its authority vouches for.
struct choosy {
    explicit choosy(int descriptor)
    {
        auto const own = authority.issue();
        context.use_certificate_chain(asio::buffer(own.certificate));
        context.use_private_key(asio::buffer(own.key), asio::ssl::context::pem);
        context.add_certificate_authority(asio::buffer(authority.pem()));
        context.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
        ssl.reset(SSL_new(context.native_handle()));
        SSL_set_fd(ssl.get(), descriptor);
    }

    test::certificate_authority authority{};
    asio::ssl::context context{asio::ssl::context::tls_server};
    std::unique_ptr<SSL, void (*)(SSL*)> ssl{nullptr, SSL_free};
};

}  // namespace

// With TLS 1.3 a client has shaken hands before the server has seen its certificate.
TEST_CASE("tls_session: an alert of the server before it disconnected is the reason of a failed write")
{
    connected pair;
    choosy server{pair.ends[1]};
    test::file_with const ca{server.authority.pem()};
    tls_session session{make_tls_context({.ca_file = ca.path(), .ca_directory = {}, .certificate = {}, .key = {}}),
                        "localhost", pair.ends[0]};
    REQUIRE(session.handshake().what == tls_session::waits_for::bytes);
    SSL_accept(server.ssl.get());
    auto const shaken = session.handshake();
    REQUIRE_FALSE(shaken.code);
    REQUIRE(shaken.what == tls_session::waits_for::nothing);
    CHECK(SSL_accept(server.ssl.get()) < 0);
    pair.hang_up();

    std::string_view const request = "GET / HTTP/1.1\r\n\r\n";
    auto const written = session.write(asio::buffer(request));
    CHECK(written.code == errc::tls_failure);
    CHECK_THAT(session.why(), ContainsSubstring("tls_options::certificate"));
}

TEST_CASE("tls_session: a server that disconnects without an alert is a broken connection")
{
    connected pair;
    choosy server{pair.ends[1]};
    test::file_with const ca{server.authority.pem()};
    tls_session session{make_tls_context({.ca_file = ca.path(), .ca_directory = {}, .certificate = {}, .key = {}}),
                        "localhost", pair.ends[0]};
    REQUIRE(session.handshake().what == tls_session::waits_for::bytes);
    SSL_accept(server.ssl.get());
    REQUIRE_FALSE(session.handshake().code);
    pair.hang_up();

    std::string_view const request = "GET / HTTP/1.1\r\n\r\n";
    CHECK(session.write(asio::buffer(request)).code.category() == boost::system::system_category());
}

}  // namespace gpurx::ingest::detail
