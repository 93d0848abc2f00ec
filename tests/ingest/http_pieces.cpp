// SPDX-License-Identifier: Apache-2.0
//
// object::async_fetch_pieces: an object that no memory holds whole.
#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/error.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstddef>
#include <cstdint>
#include <gpurx/ingest/object.hpp>
#include <span>
#include <string>

#include "http_bed.hpp"

namespace gpurx::test {

namespace {

constexpr std::size_t largest_piece = 256 << 10;

// What a consumer has been given.
struct taken {
    std::string bytes;
    std::size_t pieces = 0;
    std::size_t largest = 0;
    bool in_order = true;
    bool once = true;

    void take(std::uint64_t offset, std::span<std::byte const> piece)
    {
        in_order = in_order && offset == sum_;
        sum_ += piece.size();
        ++pieces;
        largest = std::max(largest, piece.size());
        for (std::size_t i = 0; i < piece.size(); ++i) {
            once = once && bytes.at(offset + i) == '\xee';
            bytes[offset + i] = std::to_integer<char>(piece[i]);
        }
    }

  private:
    std::uint64_t sum_ = 0;
};

outcome fetch_pieces(http_server const& server, taken& found,
                     ingest::fetch_options const& options = options_for_tests())
{
    world in{any_transport(), {.max_flows = 5}};
    outcome result;
    ingest::object object{in.io->get_executor(), *in.session, server.url(), options};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await object.async_open();
        found.bytes.assign(object.size(), '\xee');
        ingest::piece_consumer take = [&](std::uint64_t offset,
                                          std::span<std::byte const> piece) -> asio::awaitable<void> {
            found.take(offset, piece);
            co_return;
        };
        co_await object.async_fetch_pieces(std::move(take));
    });
    result.stats = object.stats();
    result.crc = object.crc32c();
    return result;
}

// Bytes of which none looks like one that has not come.
std::string bytes_of(std::size_t size)
{
    auto bytes = content_of(size);
    std::ranges::replace(bytes, '\xee', '\x01');
    return bytes;
}

}  // namespace

TEST_CASE("an object comes in pieces, through several connections, each byte once")
{
    http_content const object{bytes_of(GENERATE(0, 1, 2'000'003))};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    auto options = options_for_tests();
    options.chunk_size = 600'000;
    options.crc32c = ingest::fetch_options::checksum::always;
    taken found;
    auto const result = fetch_pieces(server, found, options);
    CHECK(result.error.empty());
    CHECK(found.bytes == object.bytes);
    CHECK(found.once);
    CHECK(found.largest <= largest_piece);
    CHECK(found.pieces >= object.bytes.size() / largest_piece);
    CHECK(result.stats.bytes_placed == object.bytes.size());
    CHECK(result.stats.retries == 0);
    CHECK(result.crc);
}

TEST_CASE("pieces of one connection come in order, also when it is cut")
{
    auto const ranges = GENERATE(true, false);
    http_content const object{bytes_of(123'456)};
    http_server server{[&](http_request request, http_reply& reply) {
        if (!ranges)
            request.range.reset();
        auto const body = object.body(request);
        reply.send(object.header(request));
        auto const cut = server.connections() < 3 && request.number == (ranges ? 1U : 0U);
        reply.send(cut ? body.substr(0, body.size() / 2) : body);
        if (cut)
            reply.close();
    }};
    auto options = options_for_tests();
    options.flows = ranges ? 1 : 3;
    taken found;
    auto const result = fetch_pieces(server, found, options);
    CHECK(result.error.empty());
    CHECK(found.bytes == object.bytes);
    CHECK(found.in_order);
    CHECK(found.once);
    CHECK(result.stats.retries >= 1);
}

TEST_CASE("any exception of a consumer ends the download")
{
    // Of a connection it would be a failure that passes.
    auto const code = error_code{asio::error::connection_reset};
    http_content const object{bytes_of(100'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    world in{any_transport(), {.max_flows = 5}};
    outcome result;
    ingest::object file{in.io->get_executor(), *in.session, server.url(), options_for_tests()};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        ingest::piece_consumer take = [&](std::uint64_t offset, std::span<std::byte const>) -> asio::awaitable<void> {
            if (offset >= 20'000)
                throw system_error{code, {.operation = "write", .object = {}, .kernel_message = {}, .advice = {}}};
            co_return;
        };
        co_await file.async_fetch_pieces(std::move(take));
    });
    CHECK(result.code == code);
    CHECK(result.error.starts_with("write: "));
    CHECK(file.stats().retries == 0);
}

}  // namespace gpurx::test
