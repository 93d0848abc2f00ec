// SPDX-License-Identifier: Apache-2.0
//
// Names of servers: several addresses of which some do not answer, other addresses later, and none at all.
#include <dlfcn.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "certificates.hpp"
#include "http_bed.hpp"

namespace {

std::atomic<bool> resolves{true};

// Names of the tests, with their addresses; null: none is known.
std::mutex names_mutex;
std::map<std::string, std::vector<std::string>, std::less<>> names;

std::vector<std::string> const* addresses_of(char const* node)
{
    std::scoped_lock const lock{names_mutex};
    auto const found = node == nullptr ? names.end() : names.find(std::string_view{node});
    return found == names.end() ? nullptr : &found->second;
}

void name(std::string const& host, std::vector<std::string> addresses)
{
    std::scoped_lock const lock{names_mutex};
    names[host] = std::move(addresses);
}

}  // namespace

// The name slowhost is not resolved before `resolves`, those of the tests have their addresses, and others are resolved
// as ever.
extern "C" int getaddrinfo(char const* node, char const* service, addrinfo const* hints, addrinfo** found)
{
    if (node != nullptr && std::string_view{node} == "slowhost") {
        resolves.wait(false);
        return EAI_NONAME;
    }
    using function = int(char const*, char const*, addrinfo const*, addrinfo**);
    static auto* const next = reinterpret_cast<function*>(::dlsym(RTLD_NEXT, "getaddrinfo"));
    auto const* const known = addresses_of(node);
    if (known == nullptr)
        return next(node, service, hints, found);
    for (auto const& each : *known) {
        if (auto const failure = next(each.c_str(), service, hints, found); failure != 0)
            return failure;
        while (*found != nullptr)
            found = &(*found)->ai_next;
    }
    return known->empty() ? EAI_NONAME : 0;
}

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;
using ingest::errc;
using ingest::fetch_options;

// For as long as it lives.
class name_server_that_is_silent {
  public:
    name_server_that_is_silent() { resolves = false; }
    name_server_that_is_silent(name_server_that_is_silent const&) = delete;
    name_server_that_is_silent& operator=(name_server_that_is_silent const&) = delete;
    ~name_server_that_is_silent()
    {
        resolves = true;
        resolves.notify_all();
    }
};

// An endpoint that neither takes nor refuses a connection: its queue is full.
class black_hole {
  public:
    explicit black_hole(tcp::endpoint const& at)
    {
        acceptor_.open(at.protocol());
        acceptor_.bind(at);
        acceptor_.listen(0);
        for (auto& each : waiting_) {
            each.open(at.protocol());
            each.native_non_blocking(true);
            // Not Asio's, which waits for an answer.
            static_cast<void>(::connect(each.native_handle(), at.data(), static_cast<socklen_t>(at.size())));
        }
    }

  private:
    asio::io_context io_{1};
    tcp::acceptor acceptor_{io_};
    std::array<tcp::socket, 3> waiting_{tcp::socket{io_}, tcp::socket{io_}, tcp::socket{io_}};
};

http_server::handler sends(http_content const& object)
{
    return [&object](http_request const& request, http_reply& reply) { object.serve(request, reply); };
}

// In the program's time.
template <class Work>
std::chrono::milliseconds time_of(Work work)
{
    fake_clock const clock;
    auto const start = std::chrono::steady_clock::now();
    work();
    return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
}

}  // namespace

TEST_CASE("an address that takes no connection costs a quarter of a second once, if the name has another")
{
    http_content const object{content_of(50'000)};
    http_server server{sends(object)};
    black_hole const first{{asio::ip::make_address("127.0.0.2"), server.port()}};
    name("twohosts", {"127.0.0.2", "127.0.0.1"});
    world in{any_transport(), {.max_flows = 5}};
    auto options = options_for_tests();
    options.timeout = 5s;
    outcome result;
    auto const time = time_of([&] { result = fetch(in, server.url("/object", "twohosts"), options); });
    INFO(result.error);
    CHECK(result.bytes == object.bytes);
    CHECK(result.stats.retries == 0);
    CHECK(time >= 250ms);
    CHECK(time < 1s);
    CHECK(time_of([&] { result = fetch(in, server.url("/object", "twohosts"), options); }) < 250ms);
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("https: an address that takes no connection costs a quarter of a second once, if the name has another")
{
    http_content const object{content_of(50'000)};
    certificate_authority const authority;
    file_with const ca{authority.pem()};
    http_server server{sends(object), tls_manner{.own = authority.issue({.for_whom = "DNS:twohosts"})}};
    black_hole const first{{asio::ip::make_address("127.0.0.2"), server.port()}};
    name("twohosts", {"127.0.0.2", "127.0.0.1"});
    world in{transport::copy, {.max_flows = 5}};
    auto options = options_for_tests();
    options.tls.ca_file = ca.path();
    outcome result;
    auto const time = time_of([&] { result = fetch(in, server.url("/object", "twohosts"), options); });
    INFO(result.error);
    CHECK(result.bytes == object.bytes);
    CHECK(result.stats.retries == 0);
    CHECK(time < 1s);
}

TEST_CASE("an address that takes connections and says nothing costs one timeout, if the name has another")
{
    http_content const object{content_of(50'000)};
    http_server server{sends(object)};
    asio::io_context io{1};
    tcp::acceptor const mute{io, {asio::ip::make_address("127.0.0.2"), server.port()}};
    name("twohosts", {"127.0.0.2", "127.0.0.1"});
    world in{any_transport(), {.max_flows = 5}};
    auto options = options_for_tests();
    options.timeout = 400ms;
    outcome result;
    auto const time = time_of([&] { result = fetch(in, server.url("/object", "twohosts"), options); });
    INFO(result.error);
    CHECK(result.bytes == object.bytes);
    CHECK(result.stats.retries == 1);
    CHECK(time < 1s);
}

TEST_CASE("more silent addresses than a timeout has room for do not hide the one that answers")
{
    http_content const object{content_of(50'000)};
    http_server server{sends(object)};
    black_hole const first{{asio::ip::make_address("127.0.0.2"), server.port()}};
    black_hole const second{{asio::ip::make_address("127.0.0.3"), server.port()}};
    name("threehosts", {"127.0.0.2", "127.0.0.3", "127.0.0.1"});
    world in{any_transport(), {.max_flows = 5}};
    auto options = options_for_tests();
    options.timeout = 300ms;
    auto const result = fetch(in, server.url("/object", "threehosts"), options);
    INFO(result.error);
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("a server that moves to another address while an object comes is found there")
{
    http_content const object{content_of(100'000)};
    http_server later{sends(object)};
    http_server first{[&](http_request const& request, http_reply& reply) {
                          if (request.number < 2)
                              return object.serve(request, reply);
                          name("moving", {"127.0.0.1"});
                          reply.reset();
                      },
                      std::nullopt,
                      {asio::ip::make_address("127.0.0.2"), later.port()}};
    name("moving", {"127.0.0.2"});
    world in{any_transport(), {.max_flows = 5}};
    auto const result = fetch(in, later.url("/object", "moving"));
    INFO(result.error);
    CHECK(result.bytes == object.bytes);
    CHECK(result.stats.retries <= options_for_tests().flows);
    CHECK_FALSE(later.requests().empty());
}

TEST_CASE("a name that is unknown for a while does not end a load")
{
    http_content const object{content_of(100'000)};
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.number != 2)
            return object.serve(request, reply);
        name("flickering", {});
        reply.reset();
    }};
    name("flickering", {"127.0.0.1"});
    world in{any_transport(), {.max_flows = 5}};
    auto const result = fetch(in, server.url("/object", "flickering"));
    INFO(result.error);
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("a name that is not resolved in time is given up")
{
    auto options = options_for_tests();
    options.timeout = 200ms;
    options.attempts = 2;
    world in{transport::copy, {.max_flows = 5}};
    name_server_that_is_silent const nobody;
    auto const result = fetch(in, "http://slowhost/object", options);
    CHECK(result.code == errc::gave_up);
    CHECK_THAT(result.error,
               ContainsSubstring("resolve slowhost failed; no address came within 200 ms (timeout); 2 attempts"));
    options.timeout = 60s;
    options.deadline = 200ms;
    CHECK(fetch(in, "http://slowhost/object", options).code == errc::gave_up);
    outcome ended;
    options.s3 = {.endpoint = "http://slowhost", .region = {}, .anonymous = true, .profile = {}};
    run(in, ended,
        [&]() -> asio::awaitable<void> { static_cast<void>(co_await ingest::async_list_s3("s3://models/", options)); });
    CHECK(ended.code == errc::gave_up);
    CHECK_FALSE(resolves);
}

}  // namespace gpurx::test
