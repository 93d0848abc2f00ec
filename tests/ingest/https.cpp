// SPDX-License-Identifier: Apache-2.0
//
// An object over TLS: the bytes are right, and from the right server, or there is an error that says what to change.
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "certificates.hpp"
#include "descriptors.hpp"
#include "http_bed.hpp"

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;
using ingest::errc;
using ingest::fetch_options;

// https connections are none of the session's, so its transport does not matter.
world any_world()
{
    return world{transport::copy, {.max_flows = 1}};
}

fetch_options trusting(file_with const& authority)
{
    auto options = options_for_tests();
    options.tls.ca_file = authority.path();
    return options;
}

// An authority, its file, and a server that it vouches for.
struct https_bed {
    explicit https_bed(http_server::handler answer, tls_manner manner = {})
        : server{std::move(answer), with_identity(std::move(manner))}
    {}

    tls_manner with_identity(tls_manner manner) const
    {
        if (manner.own.certificate.empty())
            manner.own = authority.issue();
        return manner;
    }
    outcome fetch(std::string const& url, fetch_options const& options)
    {
        auto in = any_world();
        return test::fetch(in, url, options);
    }
    outcome fetch() { return fetch(server.url(), trusting(ca)); }

    certificate_authority authority{};
    file_with ca{authority.pem()};
    http_server server;
};

http_server::handler serving(http_content const& object)
{
    return [&object](http_request const& request, http_reply& reply) { object.serve(request, reply); };
}

}  // namespace

TEST_CASE("https: a program that is executed gets no connection")
{
    http_content const object{content_of(1000)};
    std::atomic<std::uint16_t> port{0};
    std::atomic<int> connections{0};
    std::atomic<int> inherited{0};
    https_bed bed{[&](http_request const& request, http_reply& reply) {
        auto const leave = inherited_descriptors();
        for (int fd = 0; fd < 1024; ++fd) {
            sockaddr_in peer{};
            socklen_t size = sizeof peer;
            if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || ntohs(peer.sin_port) != port)
                continue;
            ++connections;
            inherited += leave.contains(fd);
        }
        object.serve(request, reply);
    }};
    port = bed.server.port();
    auto const result = bed.fetch();
    CHECK(result.error.empty());
    CHECK(connections > 0);
    CHECK(inherited == 0);
}

TEST_CASE("https: an object comes through several connections, each byte asked for once")
{
    http_content const object{content_of(GENERATE(1, 9'999, 123'456))};
    https_bed bed{serving(object)};
    auto const* const host = GENERATE("127.0.0.1", "localhost");
    auto const result = bed.fetch(bed.server.url("/object", host), trusting(bed.ca));
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(result.ranges);
    CHECK(result.stats.requests == (object.bytes.size() + 9'999) / 10'000);
    CHECK(result.stats.connections <= 3);
    CHECK(result.stats.retries == 0);
}

TEST_CASE("https: large chunks come whole, and others have their turn meanwhile")
{
    http_content const object{content_of(9 << 20)};
    https_bed bed{serving(object)};
    auto options = trusting(bed.ca);
    options.flows = 2;
    options.chunk_size = 4 << 20;
    options.timeout = 10s;
    auto const result = bed.fetch(bed.server.url(), options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
}

namespace {

// A server that is not to be trusted, or does not trust.
struct stranger {
    char const* what;
    std::function<tls_manner(certificate_authority const&)> manner;
    std::string_view words;
    void (*with)(fetch_options&) = {};
};

std::vector<stranger> strangers()
{
    using authority = certificate_authority;
    auto const usual = [](authority const& by) { return tls_manner{.own = by.issue()}; };
    return {
        {"expired", [](authority const& by) { return tls_manner{.own = by.issue({.begins = -7200, .ends = -3600})}; },
         "certificate has expired; the server needs another"},
        {"not yet valid",
         [](authority const& by) { return tls_manner{.own = by.issue({.begins = 1800, .ends = 3600})}; },
         "certificate is not yet valid"},
        {"of another address",
         [](authority const& by) { return tls_manner{.own = by.issue({.for_whom = "IP:127.0.0.2"})}; },
         "IP address mismatch"},
        {"of another name",
         [](authority const& by) { return tls_manner{.own = by.issue({.for_whom = "DNS:storage.test"})}; },
         "it is for storage.test, not for 127.0.0.1"},
        {"of an unknown authority",
         [](authority const&) { return tls_manner{.own = authority{"somebody else"}.issue()}; },
         "set its CA: tls_options::ca_file"},
        {"self-signed", [](authority const&) { return tls_manner{.own = authority::self_signed()}; },
         "self-signed certificate"},
        {"good, but our own trust is not in it", usual, "set its CA",
         [](fetch_options& options) { options.tls.ca_file.clear(); }},
        {"TLS 1.1 at most", [](authority const& by) { return tls_manner{.own = by.issue(), .only_old = true}; },
         "no TLS 1.2"},
        {"wants a certificate that is not there",
         [](authority const& by) { return tls_manner{.own = by.issue(), .clients_from = by.pem()}; },
         "tls_options::certificate"},
        {"no file of authorities", usual, "ca_file must be",
         [](fetch_options& options) { options.tls.ca_file = "nowhere.pem"; }},
        {"no certificate of one's own", usual, "certificate must be",
         [](fetch_options& options) { options.tls.certificate = "nowhere.pem"; }},
    };
}

}  // namespace

TEST_CASE("https: an untrusted server sends nothing, and is not retried")
{
    http_content const object{content_of(50'000)};
    for (auto const& each : strangers()) {
        INFO(each.what);
        certificate_authority const authority;
        file_with const ca{authority.pem()};
        http_server server{serving(object), each.manner(authority)};
        auto options = trusting(ca);
        if (each.with != nullptr)
            each.with(options);
        auto in = any_world();
        auto const result = fetch(in, server.url(), options);
        CHECK(result.code == errc::tls_failure);
        CHECK_THAT(result.error, ContainsSubstring(std::string{each.words}));
        CHECK_THAT(result.error, ContainsSubstring(server.url()));
        CHECK(result.bytes.empty());
        CHECK(server.requests().empty());
        CHECK(result.stats.connections <= 1);
    }
}

TEST_CASE("https: a certificate of one's own is shown to a server that wants one")
{
    http_content const object{content_of(50'000)};
    certificate_authority const clients;
    https_bed bed{serving(object), {.own = {}, .clients_from = clients.pem()}};
    auto const own = clients.issue();
    file_with const certificate{own.certificate};
    file_with const key{own.key};
    file_with const both{own.certificate + own.key};
    auto options = trusting(bed.ca);
    SECTION("in two files")
    {
        options.tls.certificate = certificate.path();
        options.tls.key = key.path();
    }
    SECTION("in one")
    {
        options.tls.certificate = both.path();
    }
    auto const result = bed.fetch(bed.server.url(), options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("https: a server of http and a silent server fail soon")
{
    http_content const object{content_of(50'000)};
    http_server plain{[&](http_request const&, http_reply&) {}};
    certificate_authority const authority;
    http_server silent{serving(object), tls_manner{.own = authority.issue(), .stalls = true}};
    auto options = options_for_tests();
    options.timeout = 300ms;
    options.attempts = 1;
    auto in = any_world();
    auto const stalled = fetch(in, silent.url(), options);
    CHECK(stalled.code == errc::gave_up);
    CHECK_THAT(stalled.error, ContainsSubstring("within 300 ms"));

    http_server garbage{[](http_request const&, http_reply&) {}};
    auto const unanswered = fetch(in, fmt::format("https://127.0.0.1:{}/object", garbage.port()), options);
    CHECK_FALSE(unanswered.error.empty());
}

TEST_CASE("https: missing bytes are fetched again after a close or a reset of the connection")
{
    http_content const object{content_of(50'000)};
    auto const orderly = GENERATE(false, true);
    https_bed bed{[&](http_request const& request, http_reply& reply) {
        if (request.number != 1)
            return object.serve(request, reply);
        reply.send(object.header(request));
        reply.send(object.body(request).substr(0, 4321));
        orderly ? reply.close() : reply.reset();
    }};
    auto const result = bed.fetch();
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(result.stats.retries >= 1);
}

TEST_CASE("https: injected bytes are an error, and no bytes of the object")
{
    http_content const object{content_of(50'000)};
    https_bed bed{[&](http_request const& request, http_reply& reply) {
        reply.send(object.header(request));
        reply.send(object.body(request).substr(0, 100));
        // As a record of TLS 1.2, so that only its code of authentication can tell.
        reply.send_raw(std::string{"\x17\x03\x03\x01\x00", 5} + std::string(256, 'x'));
    }};
    auto const result = bed.fetch();
    CHECK(result.code == errc::tls_failure);
    CHECK_THAT(result.error, ContainsSubstring("TLS: "));
}

TEST_CASE("https: a handshake that goes wrong once is tried again, if it says nothing of trust or others are sound")
{
    using namespace std::string_literals;
    struct row {
        std::string bytes;
        bool may_be_first;
    };
    auto const each = GENERATE(row{"\x15\x03\x03\x00\x02\x02\x50"s, true},     // alert: internal error
                               row{"\x15\x03\x03\x00\x02\x02\x28"s, false},    // alert: handshake failure
                               row{"\x16\x03\x03\x00\x08\x02yyyyyyy"s, true},  // a damaged record
                               row{"HTTP/1.1 503 Slow Down\r\n\r\n"s, true});  // no TLS
    auto const spoilt = GENERATE(0U, 1U);
    http_content const object{content_of(50'000)};
    https_bed bed{serving(object),
                  {.own = {}, .spoils = [&](unsigned connection) { return connection == spoilt ? each.bytes : ""; }}};
    auto const result = bed.fetch();
    INFO(result.error);
    if (spoilt == 0 && !each.may_be_first) {
        CHECK(result.code == errc::tls_failure);
        return;
    }
    CHECK(result.bytes == object.bytes);
    // Others may have done the work of the second by then.
    if (spoilt == 0)
        CHECK(result.stats.retries == 1);
}

TEST_CASE("https: redirects lead to https, and never back to http")
{
    http_content const object{content_of(50'000)};
    http_server plain{serving(object)};
    https_bed other{serving(object)};
    auto const moved = [](std::string const& to) {
        return [to](http_request const&, http_reply& reply) {
            reply.send(fmt::format("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", to));
        };
    };
    http_server from_plain{moved(other.server.url())};
    auto const up = other.fetch(from_plain.url(), trusting(other.ca));
    CHECK(up.error.empty());
    CHECK(up.bytes == object.bytes);

    https_bed down{moved(plain.url())};
    auto const refused = down.fetch();
    CHECK(refused.code == errc::bad_redirect);
    CHECK_THAT(refused.error, ContainsSubstring("from https to http"));
    CHECK(plain.requests().empty());
}

namespace {

bool says(http_request const& request, std::string_view line)
{
    return request.text.find("\r\n" + std::string{line} + "\r\n") != std::string::npos;
}

std::string redirect_to(std::string const& where, std::string_view more = {})
{
    return fmt::format("HTTP/1.1 302 Found\r\nLocation: {}\r\n{}Content-Length: 0\r\n\r\n", where, more);
}

}  // namespace

TEST_CASE("https: fields and a token go to the URL's own origin only")
{
    http_content const object{content_of(50'000)};
    https_bed bed{serving(object)};
    http_server other{serving(object), tls_manner{.own = bed.authority.issue()}};
    http_server first{[&](http_request const& request, http_reply& reply) {
                          if (request.target == "/object")
                              return reply.send(redirect_to("/here"));
                          reply.send(redirect_to(other.url("/there")));
                      },
                      tls_manner{.own = bed.authority.issue()}};
    auto options = trusting(bed.ca);
    options.headers = {{"X-Mine", "one"}, {"User-Agent", "mine"}};
    options.bearer = "secret";
    auto const result = bed.fetch(first.url(), options);
    CHECK(result.error.empty());
    CHECK((result.bytes == object.bytes));
    REQUIRE(first.requests().size() == 2);
    for (auto const& each : first.requests()) {
        CHECK(says(each, "Authorization: Bearer secret"));
        CHECK(says(each, "X-Mine: one"));
        CHECK(says(each, "User-Agent: mine"));
        CHECK_FALSE(says(each, "User-Agent: gpurx"));
    }
    CHECK_FALSE(other.requests().empty());
    for (auto const& each : other.requests()) {
        CHECK(each.text.find("secret") == std::string::npos);
        CHECK(each.text.find("X-Mine") == std::string::npos);
    }
}

TEST_CASE("https: Hugging Face's way to a file: a token for the hub, a signed URL for the rest")
{
    http_content const object{content_of(50'000)};
    https_bed bed{serving(object)};
    http_server hub{[&](http_request const& request, http_reply& reply) {
                        if (!says(request, "Authorization: Bearer hf_secret"))
                            return reply.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
                        reply.send(redirect_to(bed.server.url("/xet/blob?Signature=abc~&Expires=1", "localhost"),
                                               "X-Linked-Size: 50000\r\nX-Linked-ETag: \"linked\"\r\nETag: \"of the "
                                               "redirect\"\r\nX-Repo-Commit: 1234\r\n"));
                    },
                    tls_manner{.own = bed.authority.issue()}};
    set_variable const token{"HF_TOKEN", "hf_secret"};
    set_variable const endpoint{"HF_ENDPOINT", hub.url("")};
    auto const result = bed.fetch(hub.url("/org/model/resolve/main/model.safetensors"), trusting(bed.ca));
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(result.stats.redirects == 1);
    CHECK(hub.requests().size() == 1);
    for (auto const& each : bed.server.requests()) {
        CHECK(each.text.find("hf_secret") == std::string::npos);
        CHECK(each.target == "/xet/blob?Signature=abc~&Expires=1");
    }
}

TEST_CASE("https: a user in the URL, or in netrc, is sent, and shown in no message")
{
    https_bed bed{[&](http_request const&, http_reply& reply) {
        reply.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    }};
    file_with const netrc{"machine 127.0.0.1 login me password secret"};
    auto url = bed.server.url();
    SECTION("in the URL")
    {
        url.replace(0, 8, "https://me:secret@");
    }
    SECTION("in netrc") {}
    set_variable const where{"NETRC", netrc.path()};
    auto const result = bed.fetch(url, trusting(bed.ca));
    CHECK(result.code == errc::http_status);
    CHECK_THAT(result.error, ContainsSubstring(bed.server.url()) && !ContainsSubstring("secret"));
    REQUIRE(bed.server.requests().size() == 1);
    CHECK(says(bed.server.requests().front(), "Authorization: Basic bWU6c2VjcmV0"));
}

TEST_CASE("https: fields that cannot be sent are refused at once")
{
    auto in = any_world();
    auto options = options_for_tests();
    SECTION("two lines")
    {
        options.headers = {{"X", "a\r\nHost: b"}};
    }
    SECTION("the library's own")
    {
        options.headers = {{"Range", "bytes=0-1"}};
    }
    SECTION("a token of two lines")
    {
        options.bearer = "a\nb";
    }
    CHECK_THROWS_AS(ingest::object(in.io->get_executor(), *in.session, "https://127.0.0.1/x", options),
                    std::invalid_argument);
}

TEST_CASE("a proxy of the environment: a tunnel for https, the whole URL for http")
{
    http_content const object{content_of(50'000)};
    https_bed bed{serving(object)};
    http_server plain{serving(object)};
    auto refuses = false;
    http_server proxy{[&](http_request const& request, http_reply& reply) {
        if (refuses)
            return reply.send("HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n");
        if (!request.text.starts_with("CONNECT "))
            return object.serve(request, reply);
        reply.tunnel_to(bed.server.port());
    }};
    auto const at = fmt::format("{}me:secret@127.0.0.1:{}", "http://", proxy.port());
    set_variable const of_https{"https_proxy", at};
    set_variable const of_http{"http_proxy", at};
    auto in = world{transport::copy, {.max_flows = 5}};

    auto const tunnelled = fetch(in, bed.server.url(), trusting(bed.ca));
    CHECK(tunnelled.error.empty());
    CHECK(tunnelled.bytes == object.bytes);
    REQUIRE_FALSE(proxy.requests().empty());
    CHECK(proxy.requests().front().target == fmt::format("127.0.0.1:{}", bed.server.port()));
    CHECK(says(proxy.requests().front(), "Proxy-Authorization: Basic bWU6c2VjcmV0"));
    for (auto const& each : bed.server.requests())
        CHECK(each.text.find("Proxy-") == std::string::npos);

    auto const forwarded = fetch(in, plain.url());
    CHECK(forwarded.bytes == object.bytes);
    CHECK(plain.requests().empty());
    CHECK(proxy.requests().back().target == plain.url());
    CHECK(says(proxy.requests().back(), "Proxy-Authorization: Basic bWU6c2VjcmV0"));

    refuses = true;
    auto const refused = fetch(in, bed.server.url(), trusting(bed.ca));
    CHECK(refused.code == errc::http_status);
    CHECK_THAT(refused.error, ContainsSubstring("407 Proxy Authentication Required; through the proxy http:") &&
                                  !ContainsSubstring("secret"));

    set_variable const spared{"no_proxy", "localhost,127.0.0.0/8"};
    CHECK(fetch(in, plain.url()).bytes == object.bytes);
    CHECK_FALSE(plain.requests().empty());
}

TEST_CASE("a redirect to a host of several lines reaches no proxy")
{
    http_server proxy{[](http_request const&, http_reply& reply) {
        reply.send("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n");
    }};
    http_server hostile{[](http_request const&, http_reply& reply) {
        reply.send(
            redirect_to("https:"
                        "//evil%0d%0aX-Injected%3a%20yes%0d%0aY.example/"));
    }};
    set_variable const of_https{"https_proxy", fmt::format("http://127.0.0.1:{}", proxy.port())};
    auto in = any_world();
    auto const result = fetch(in, hostile.url());
    CHECK(result.code == errc::bad_redirect);
    CHECK_THAT(result.error, ContainsSubstring("letters"));
    CHECK(proxy.requests().empty());
}

}  // namespace gpurx::test
