// SPDX-License-Identifier: Apache-2.0
//
// An object with keep_connections: what one async_fetch leaves open serves the next.
#include <algorithm>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstddef>
#include <exception>
#include <gpurx/ingest/object.hpp>
#include <optional>
#include <string>

#include "certificates.hpp"
#include "http_bed.hpp"

namespace gpurx::test {

namespace {

using ingest::placement;

ingest::fetch_options kept(unsigned flows)
{
    auto options = options_for_tests();
    options.flows = flows;
    options.keep_connections = true;
    return options;
}

// The object, in so many calls one after the other.
outcome fetch_in_parts(world& in, std::string const& url, std::size_t parts, ingest::fetch_options const& options)
{
    outcome result;
    ingest::object object{in.io->get_executor(), *in.session, url, options};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await object.async_open();
        result.bytes.assign(object.size(), '\xee');
        auto const size = (object.size() + parts - 1) / parts;
        for (std::size_t at = 0; at < object.size(); at += size) {
            placement const part{at, span_of(result.bytes).subspan(at, std::min(size, object.size() - at))};
            co_await object.async_fetch({&part, 1});
        }
    });
    result.stats = object.stats();
    return result;
}

}  // namespace

TEST_CASE("connections that are kept serve the next fetch")
{
    http_content const object{content_of(120'000)};
    auto const with_tls = GENERATE(false, true);
    certificate_authority const authority;
    file_with const trusted{authority.pem()};
    std::atomic<http_server*> self = nullptr;
    http_server server{[&](http_request const& request, http_reply& reply) {
                           // The other connections are made before there is nothing left for them.
                           if (request.number > 0)
                               fake_clock::sleep_until([&] { return self.load()->connections() == 3; });
                           object.serve(request, reply);
                       },
                       with_tls ? std::optional{tls_manner{.own = authority.issue()}} : std::nullopt};
    self = &server;
    world in{any_transport(), {.max_flows = 5}};
    auto options = kept(3);
    options.tls.ca_file = trusted.path();
    auto const result = fetch_in_parts(in, server.url(), 3, options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(server.connections() == 3);
    CHECK(result.stats.connections == 3);
    CHECK(result.stats.retries == 0);
}

TEST_CASE("connections that are kept can be given up, and the next fetch connects anew")
{
    http_content const object{content_of(120'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    world in{any_transport(), {.max_flows = 1}};
    outcome result;
    ingest::object first{in.io->get_executor(), *in.session, server.url(), kept(1)};
    ingest::object second{in.io->get_executor(), *in.session, server.url(), kept(1)};
    run(in, result, [&]() -> asio::awaitable<void> {
        for (auto* const each : {&first, &second, &first}) {
            if (each->stats().connections == 0)
                co_await each->async_open();
            result.bytes.assign(object.bytes.size(), '\xee');
            placement const all{0, span_of(result.bytes)};
            co_await each->async_fetch({&all, 1});
            CHECK(result.bytes == object.bytes);
            each->disconnect();
            each->disconnect();
        }
    });
    CHECK(result.error.empty());
    CHECK(server.connections() == 3);
    CHECK(first.stats().retries == 0);
}

TEST_CASE("connections are closed behind a fetch where they are not to be kept")
{
    http_content const object{content_of(120'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    world in{any_transport(), {.max_flows = 5}};
    auto options = kept(1);
    options.keep_connections = false;
    auto const result = fetch_in_parts(in, server.url(), 3, options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(server.connections() == 3);
}

TEST_CASE("a kept connection that the server closes is replaced, and that is no retry")
{
    http_content const object{content_of(120'000)};
    enum class closes { behind_an_answer, instead_of_an_answer, with_a_reset, in_an_answer };
    auto const how =
        GENERATE(closes::behind_an_answer, closes::instead_of_an_answer, closes::with_a_reset, closes::in_an_answer);
    http_server server{[&](http_request const& request, http_reply& reply) {
        // The first call has one request, the others have one each.
        auto const is_kept = request.number == 1;
        if (how == closes::instead_of_an_answer && is_kept)
            return reply.close();
        if (how == closes::with_a_reset && is_kept)
            return reply.reset();
        if (how == closes::in_an_answer && is_kept) {
            reply.send(object.header(request));
            reply.send(object.body(request).substr(0, 1'000));
            return reply.close();
        }
        object.serve(request, reply);
        if (how == closes::behind_an_answer)
            reply.close();
    }};
    world in{any_transport(), {.max_flows = 5}};
    auto options = kept(1);
    options.chunk_size = 40'000;
    options.attempts = 2;
    auto const result = fetch_in_parts(in, server.url(), 3, options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(server.connections() == (how == closes::behind_an_answer ? 3 : 2));
    CHECK(result.stats.bytes_placed == object.bytes.size());
    // Where it had begun to answer it is one.
    CHECK(result.stats.retries == (how == closes::in_an_answer ? 1 : 0));
}

TEST_CASE("a kept connection lets a program end, and may be silent for as long as it likes")
{
    http_content const object{content_of(60'000)};
    std::atomic<http_server*> self = nullptr;
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.number > 0)
            fake_clock::sleep_until([&] { return self.load()->connections() == 2; });
        object.serve(request, reply);
    }};
    self = &server;
    fake_kernel kernel;
    test_session session{transport::copy, kernel, {.max_flows = 8}};
    asio::io_context io;
    auto options = kept(2);
    options.timeout = 2s;
    ingest::object file{io.get_executor(), *session, server.url(), options};
    std::string bytes(object.bytes.size(), ' ');
    fake_clock clock;
    std::exception_ptr failure;
    auto const fetch = [&](bool opens) -> asio::awaitable<void> {
        if (opens)
            co_await file.async_open();
        placement const all{0, span_of(bytes)};
        co_await file.async_fetch({&all, 1});
    };
    for (auto const opens : {true, false}) {
        std::ranges::fill(bytes, ' ');
        asio::co_spawn(io, fetch(opens), [&](std::exception_ptr error) { failure = error; });
        auto const ended = clock.run_until(io, [&] { return io.stopped(); });
        REQUIRE(ended);  // nothing is left to do
        CHECK_FALSE(failure);
        CHECK(bytes == object.bytes);
        clock.run_for(io, options.timeout + 1s);
    }
    CHECK(file.stats().retries == 0);
    CHECK(server.connections() == 2);
}

}  // namespace gpurx::test
