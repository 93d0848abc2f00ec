// SPDX-License-Identifier: Apache-2.0
//
// TLS sessions over TCP, each record at a time.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/ingest/error.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "certificates.hpp"
#include "net/tls.hpp"
#include "test_pattern.hpp"

namespace gpurx::ingest::detail {

namespace {

using Catch::Matchers::ContainsSubstring;

constexpr int hang_limit_ms = 60'000;

void await(int descriptor, short events)
{
    pollfd waiting{.fd = descriptor, .events = events, .revents = 0};
    REQUIRE(::poll(&waiting, 1, hang_limit_ms) == 1);
}

// Two ends of a TCP connection over loopback, which do not block.
struct tcp_pair {
    tcp_pair()
    {
        auto const listens = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        REQUIRE(::bind(listens, reinterpret_cast<sockaddr*>(&address), size) == 0);
        REQUIRE(::listen(listens, 1) == 0);
        REQUIRE(::getsockname(listens, reinterpret_cast<sockaddr*>(&address), &size) == 0);
        client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        REQUIRE(::connect(client, reinterpret_cast<sockaddr*>(&address), size) == 0);
        server = ::accept4(listens, nullptr, nullptr, SOCK_CLOEXEC);
        ::close(listens);
        int const on = 1;
        REQUIRE(::setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
        REQUIRE(::fcntl(client, F_SETFL, O_NONBLOCK) == 0);
        REQUIRE(::fcntl(server, F_SETFL, O_NONBLOCK) == 0);
    }
    tcp_pair(tcp_pair const&) = delete;
    tcp_pair& operator=(tcp_pair const&) = delete;
    ~tcp_pair()
    {
        ::close(client);
        ::close(server);
    }

    int client = -1;
    int server = -1;
};

struct suite {
    int version;
    char const* name;
};
constexpr std::array suites{
    suite{TLS1_3_VERSION, "TLS_AES_128_GCM_SHA256"},
    suite{TLS1_3_VERSION, "TLS_AES_256_GCM_SHA384"},
    suite{TLS1_3_VERSION, "TLS_CHACHA20_POLY1305_SHA256"},
    suite{TLS1_2_VERSION, "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256"},
    suite{TLS1_2_VERSION, "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384"},
    suite{TLS1_2_VERSION, "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305"},
    suite{TLS1_2_VERSION, "ECDHE-ECDSA-AES128-SHA256:ECDHE-RSA-AES128-SHA256"},
};

// A client and a server that have shaken hands. The server encrypts to memory, and the test passes the bytes on.
class conversation {
  public:
    explicit conversation(suite const& which = suites[0])
    {
        auto const own = authority_.issue();
        context_.use_certificate_chain(asio::buffer(own.certificate));
        context_.use_private_key(asio::buffer(own.key), asio::ssl::context::pem);
        auto* const context = context_.native_handle();
        SSL_CTX_set_min_proto_version(context, which.version);
        SSL_CTX_set_max_proto_version(context, which.version);
        REQUIRE((which.version == TLS1_3_VERSION ? SSL_CTX_set_ciphersuites(context, which.name)
                                                 : SSL_CTX_set_cipher_list(context, which.name)) == 1);
        SSL_CTX_set_num_tickets(context, 3);
        ssl_.reset(SSL_new(context));
        SSL_set_accept_state(ssl_.get());
        auto* const in = BIO_new_socket(pair_.server, BIO_NOCLOSE);
        SSL_set_bio(ssl_.get(), in, BIO_new(BIO_s_mem()));
        shake_hands();
    }

    tls_session& client() { return *session_; }
    SSL* server() { return ssl_.get(); }

    // What the server has encrypted by now.
    std::string encrypted()
    {
        char* bytes = nullptr;
        auto const size = BIO_get_mem_data(SSL_get_wbio(ssl_.get()), &bytes);
        std::string all(bytes, static_cast<std::size_t>(size));
        static_cast<void>(BIO_reset(SSL_get_wbio(ssl_.get())));
        return all;
    }
    std::string encrypt(std::string_view bytes)
    {
        REQUIRE(SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size()));
        return encrypted();
    }
    void pass_on(std::string_view bytes)
    {
        while (!bytes.empty()) {
            await(pair_.server, POLLOUT);
            auto const size = ::send(pair_.server, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            REQUIRE(size > 0);
            bytes.remove_prefix(static_cast<std::size_t>(size));
        }
    }
    void send(std::string_view bytes) { pass_on(encrypt(bytes)); }
    void hang_up() { ::shutdown(pair_.server, SHUT_WR); }

    // Reads bytes until there are so many, or an error.
    std::string read(std::size_t size, std::size_t at_once = 100'000)
    {
        std::string all;
        std::string some(at_once, ' ');
        while (all.size() < size) {
            auto const done = wait_for([&] {
                return session_->read(host_span{asio::buffer(some.data(), std::min(at_once, size - all.size()))});
            });
            code = done.code;
            if (code)
                break;
            all.append(some, 0, done.bytes);
        }
        return all;
    }
    // Returns the error in whose place another byte is awaited.
    error_code end()
    {
        CHECK(read(1).empty());
        return code;
    }
    std::string server_reads(std::string_view sent)
    {
        CHECK(session_->write(asio::buffer(sent)).bytes == sent.size());
        std::string text(100, ' ');
        auto size = -1;
        while (size <= 0) {
            await(pair_.server, POLLIN);
            size = SSL_read(ssl_.get(), text.data(), static_cast<int>(text.size()));
            REQUIRE((size > 0 || SSL_get_error(ssl_.get(), size) == SSL_ERROR_WANT_READ));
        }
        text.resize(static_cast<std::size_t>(size));
        return text;
    }

    error_code code;

  private:
    template <class Step>
    tls_session::step wait_for(Step step)
    {
        for (;;) {
            auto const done = step();
            if (done.what == tls_session::waits_for::nothing)
                return done;
            await(pair_.client, done.what == tls_session::waits_for::bytes ? POLLIN : POLLOUT);
        }
    }

    void shake_hands()
    {
        session_.emplace(make_tls_context({.ca_file = ca_.path(), .ca_directory = {}, .certificate = {}, .key = {}}),
                         "localhost", pair_.client);
        auto is_done = false;
        while (!is_done || SSL_is_init_finished(ssl_.get()) == 0) {
            auto const step = session_->handshake();
            REQUIRE_FALSE(step.code);
            is_done = step.what == tls_session::waits_for::nothing;
            if (SSL_is_init_finished(ssl_.get()) == 0)
                SSL_do_handshake(ssl_.get());
            auto const out = encrypted();
            pass_on(out);
            if (!out.empty() && !is_done)
                await(pair_.client, POLLIN);
        }
    }

    test::certificate_authority authority_;
    test::file_with const ca_{authority_.pem()};
    asio::ssl::context context_{asio::ssl::context::tls_server};
    tcp_pair pair_;
    std::unique_ptr<SSL, void (*)(SSL*)> ssl_{nullptr, SSL_free};
    std::optional<tls_session> session_;
};

// Counts the changes of the client's key.
void count_key_updates(int is_sent, int /*version*/, int type, void const* bytes, std::size_t size, SSL* /*ssl*/,
                       void* count)
{
    if (is_sent == 0 && type == SSL3_RT_HANDSHAKE && size > 0 &&
        *static_cast<std::uint8_t const*>(bytes) == SSL3_MT_KEY_UPDATE)
        ++*static_cast<int*>(count);
}

std::string content(std::size_t first, std::size_t size)
{
    std::string bytes(size, ' ');
    test::fill_with_pattern(std::as_writable_bytes(std::span{bytes}), first);
    return bytes;
}

}  // namespace

TEST_CASE("tls_session: all bytes come, by each cipher suite")
{
    auto const which = GENERATE(from_range(suites));
    INFO(which.name);
    conversation talk{which};
    CHECK(talk.server_reads("GET /") == "GET /");
    // With TLS 1.3 the tickets come before the first bytes.
    talk.send(content(0, 50'000));
    CHECK(talk.read(50'000) == content(0, 50'000));
    talk.send(content(50'000, 3));
    CHECK(talk.read(3, 1) == content(50'000, 3));
    CHECK(talk.server_reads("again") == "again");
    CHECK(talk.client().arrived() >= 50'003);
}

TEST_CASE("tls_session: records of one byte, and records in pieces")
{
    conversation talk{GENERATE(suites[0], suites[3])};
    std::string sent;
    for (std::size_t i = 0; i < 300; ++i)
        sent += talk.encrypt(content(i, 1));
    talk.pass_on(sent);
    CHECK(talk.read(300, GENERATE(std::size_t{1}, std::size_t{7}, std::size_t{1000})) == content(0, 300));
    auto const record = talk.encrypt(content(300, 10'000));
    for (std::size_t at = 0; at < record.size(); at += 1'111) {
        std::array<std::byte, 10> some{};
        CHECK(talk.client().read(host_span{some}).what == tls_session::waits_for::bytes);
        talk.pass_on(std::string_view{record}.substr(at, 1'111));
    }
    CHECK(talk.read(10'000) == content(300, 10'000));
}

TEST_CASE("tls_session: tickets between bytes are no bytes")
{
    conversation talk;
    talk.send(content(0, 1000));
    REQUIRE(SSL_new_session_ticket(talk.server()) == 1);
    talk.send(content(1000, 1000));
    auto const at_once = GENERATE(std::size_t{1}, std::size_t{600}, std::size_t{100'000});
    CHECK(talk.read(2000, at_once) == content(0, 2000));
    // As to look whether an idle connection is quiet.
    REQUIRE(SSL_new_session_ticket(talk.server()) == 1);
    REQUIRE(SSL_do_handshake(talk.server()) == 1);
    talk.pass_on(talk.encrypted());
    std::array<std::byte, 1> some{};
    CHECK(talk.client().read(host_span{some}).what == tls_session::waits_for::bytes);
    talk.send("x");
    CHECK(talk.read(1) == "x");
}

TEST_CASE("tls_session: the server changes its key, and asks for another of the client")
{
    conversation talk{GENERATE(suites[0], suites[1], suites[2])};
    auto const asks = GENERATE(SSL_KEY_UPDATE_REQUESTED, SSL_KEY_UPDATE_NOT_REQUESTED);
    int changes = 0;
    SSL_set_msg_callback(talk.server(), count_key_updates);
    SSL_set_msg_callback_arg(talk.server(), &changes);
    std::string expected;
    for (std::size_t i = 0; i < 3; ++i) {
        talk.send(content(1000 * i, 1000));
        REQUIRE(SSL_key_update(talk.server(), asks) == 1);
        expected += content(1000 * i, 1000);
    }
    talk.send(content(3000, 40'000));
    CHECK(talk.read(43'000) == expected + content(3000, 40'000));
    CHECK_FALSE(talk.code);
    CHECK(talk.server_reads("GET /") == "GET /");
    CHECK((changes > 0) == (asks == SSL_KEY_UPDATE_REQUESTED));
    talk.send("end");
    CHECK(talk.read(3) == "end");
}

TEST_CASE("tls_session: close_notify and an end without it are the end")
{
    auto const& which = GENERATE(suites[0], suites[3]);
    auto const is_orderly = GENERATE(true, false);
    conversation talk{which};
    talk.send(content(0, 20'000));
    if (is_orderly) {
        SSL_shutdown(talk.server());
        talk.pass_on(talk.encrypted());
    } else {
        talk.hang_up();
    }
    CHECK(talk.read(20'000) == content(0, 20'000));
    CHECK(talk.end() == asio::error::eof);
}

TEST_CASE("tls_session: an alert between bytes is an error with its reason")
{
    conversation talk{GENERATE(suites[0], suites[3])};
    talk.send(content(0, 20'000));
    // A record that is none of the client's: OpenSSL answers with an alert.
    std::string const foreign = std::string{"\x17\x03\x03\x01\x00", 5} + std::string(256, 'x');
    SSL_set0_rbio(talk.server(), BIO_new_mem_buf(foreign.data(), static_cast<int>(foreign.size())));
    char byte = 0;
    CHECK(SSL_read(talk.server(), &byte, 1) < 0);
    talk.pass_on(talk.encrypted());
    CHECK(talk.read(20'000) == content(0, 20'000));
    CHECK(talk.end() == errc::tls_failure);
    CHECK_THAT(talk.client().why(), ContainsSubstring("bad record mac"));
}

TEST_CASE("tls_session: a record that somebody changed is an error")
{
    conversation talk{GENERATE(suites[0], suites[2], suites[3])};
    talk.send(content(0, 20'000));
    auto record = talk.encrypt(content(20'000, 100));
    record.at(50) = static_cast<char>(record.at(50) ^ 1);
    talk.pass_on(record);
    CHECK(talk.read(20'000) == content(0, 20'000));
    CHECK(talk.end() == errc::tls_failure);
    CHECK_THAT(talk.client().why(), ContainsSubstring("TLS: "));
}

}  // namespace gpurx::ingest::detail
