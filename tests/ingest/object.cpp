// SPDX-License-Identifier: Apache-2.0
//
// object: files of this machine, and that servers are reached through the same face.
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/crc32c.hpp>
#include <random>
#include <thread>
#include <vector>

#include "file_bed.hpp"

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using ingest::object;
using ingest::placement;

// A disk, and a file system in memory.
std::filesystem::path place_for_files()
{
    auto const place = GENERATE(as<std::filesystem::path>{}, std::filesystem::temp_directory_path(), "/dev/shm");
    return std::filesystem::is_directory(place) ? place : std::filesystem::temp_directory_path();
}

std::uint32_t crc_of(std::string_view bytes)
{
    return crc32c(std::as_bytes(std::span{bytes}));
}

}  // namespace

// A read may be over before the next one has been started.
TEST_CASE("a file comes whole on an executor of several threads")
{
    directory const files;
    auto const bytes = content_of(8'000);
    auto const path = files.write("file", bytes);
    world in{transport::copy};
    asio::thread_pool threads{4};
    for (int round = 0; round < 200; ++round) {
        std::string got(bytes.size(), ' ');
        object file{threads.get_executor(), *in.session, path, {.flows = 8, .chunk_size = 1'000}};
        auto const load = [&]() -> asio::awaitable<void> {
            co_await file.async_open();
            std::array const places{placement{0, span_of(got)}};
            co_await file.async_fetch(places);
        };
        asio::co_spawn(threads, load, asio::use_future).get();
        REQUIRE(got == bytes);
    }
}

TEST_CASE("a file comes whole, by its path and by its URL")
{
    directory const files{place_for_files()};
    auto const bytes = content_of(GENERATE(1, 4'095, 4'096, 4'097, 123'456, 3'000'000));
    auto const path = files.write("a b", bytes);
    auto const front = std::min<std::size_t>(GENERATE(0, 1, 5'000), bytes.size());
    auto options = options_for_tests();
    options.chunk_size = GENERATE(10'000, 1 << 20);
    options.crc32c = ingest::fetch_options::checksum::always;
    world in{any_transport()};
    // A disk that others use takes its time.
    if (front == 1 && GENERATE(false, true))
        directory::evict(path);
    auto const by_path = load(in, path, front, options);
    CHECK(by_path.error.empty());
    CHECK(by_path.bytes == bytes);
    CHECK(by_path.crc == crc_of(bytes));
    CHECK(by_path.stats.bytes_placed == bytes.size());
    auto const by_url = load(in, "file://" + (files / "a%20b"), front, options);
    CHECK(by_url.error.empty());
    CHECK(by_url.bytes == bytes);
}

TEST_CASE("a file needs no session, and anything else does")
{
    directory const files;
    auto const path = files.write("file", content_of(123'456));
    world in{any_transport()};
    std::string read(3, '\0');
    ingest::object file{in.io->get_executor(), path};
    outcome result;
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_read_front(host_span{std::span{read}});
    });
    CHECK(result.error.empty());
    CHECK(read == content_of(123'456).substr(0, 3));
    for (auto const* const other : {"http://127.0.0.1/key?token=secret", "s3://bucket/key", "https://127.0.0.1/"})
        CHECK_THROWS_MATCHES((ingest::object{in.io->get_executor(), other}), system_error,
                             MessageMatches(ContainsSubstring("need a session") && !ContainsSubstring("secret")));
}

TEST_CASE("an empty file is one")
{
    directory const files;
    world in{any_transport()};
    auto const result = load(in, files.write("empty", ""));
    CHECK(result.error.empty());
    CHECK(result.bytes.empty());
}

TEST_CASE("an object of a server has the same face")
{
    http_content const content{content_of(123'456)};
    http_server server{[&](http_request const& request, http_reply& reply) { content.serve(request, reply); }};
    world in{any_transport(), {.max_flows = 5}};
    auto const result = load(in, server.url(), 1'000);
    CHECK(result.error.empty());
    CHECK(result.bytes == content.bytes);
    CHECK(result.stats.connections >= 1);
}

TEST_CASE("an object is handed on in pieces, each byte once, of a file as of a server")
{
    directory const files{place_for_files()};
    auto bytes = content_of(GENERATE(0, 1, 4'097, 2'000'003));
    std::ranges::replace(bytes, '\xee', '\x01');  // what has not come
    http_content const content{bytes};
    http_server server{[&](http_request const& request, http_reply& reply) { content.serve(request, reply); }};
    auto const front = std::min<std::size_t>(GENERATE(0, 1'000), bytes.size());
    auto options = options_for_tests();
    options.flows = GENERATE(1U, 3U);
    options.chunk_size = 600'000;
    options.crc32c = ingest::fetch_options::checksum::always;
    world in{any_transport(), {.max_flows = 5}};
    for (auto const& place : {files.write("file", bytes), server.url()}) {
        INFO(place);
        outcome result;
        std::string taken(bytes.size(), '\xee');
        std::uint64_t next = front;
        bool is_right = true;
        object from{in.io->get_executor(), *in.session, place, options};
        run(in, result, [&]() -> asio::awaitable<void> {
            co_await from.async_open();
            co_await from.async_read_front(host_span{reinterpret_cast<std::byte*>(taken.data()), front});
            ingest::piece_consumer take = [&](std::uint64_t offset,
                                              std::span<std::byte const> piece) -> asio::awaitable<void> {
                is_right = is_right && piece.size() <= 256 << 10 && (options.flows > 1 || offset == next);
                next = offset + piece.size();
                for (std::size_t i = 0; i < piece.size(); ++i) {
                    is_right = is_right && taken.at(offset + i) == '\xee';
                    taken[offset + i] = std::to_integer<char>(piece[i]);
                }
                co_return;
            };
            co_await from.async_fetch_pieces(std::move(take));
        });
        CHECK(result.error.empty());
        CHECK(is_right);
        CHECK(taken == bytes);
        CHECK(from.crc32c() == crc_of(bytes));
        CHECK(from.stats().bytes_placed == bytes.size());
    }
}

TEST_CASE("an exception of a file's consumer ends the reading")
{
    directory const files;
    auto const path = files.write("file", content_of(1'000'000));
    world in{any_transport()};
    object file{in.io->get_executor(), *in.session, path, {.flows = 2, .chunk_size = 100'000}};
    outcome result;
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        ingest::piece_consumer take = [&](std::uint64_t offset, std::span<std::byte const>) -> asio::awaitable<void> {
            if (offset >= 300'000)
                throw system_error{gpurx::errc::bad_destination, {}};
            co_return;
        };
        co_await file.async_fetch_pieces(std::move(take));
    });
    CHECK(result.code == gpurx::errc::bad_destination);
}

TEST_CASE("scattered bytes of a file come to their places, and no others are written")
{
    directory const files{place_for_files()};
    auto const bytes = content_of(1'000'000);
    auto const path = files.write("file", bytes);
    if (GENERATE(false, true))
        directory::evict(path);
    std::mt19937 random{GENERATE(1U, 2U, 3U)};
    std::string memory(bytes.size() + 64, '\xee');
    auto expected = memory;
    std::vector<placement> places;
    // Addresses are those of the file and some more.
    std::size_t const shift = random() % 64;
    for (std::size_t at = random() % 5'000; at < bytes.size();) {
        auto const size = std::min<std::size_t>(1 + random() % (random() % 4 == 0 ? 200'000 : 500), bytes.size() - at);
        places.push_back({at, span_of(memory).subspan(at + shift, size)});
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), size,
                    expected.begin() + static_cast<std::ptrdiff_t>(at + shift));
        at += size + (random() % 3 == 0 ? 0 : random() % 100'000);
    }
    std::ranges::shuffle(places, random);
    world in{any_transport()};
    outcome result;
    object file{in.io->get_executor(), *in.session, path, {.flows = 3, .chunk_size = 70'000}};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_fetch(places);
    });
    CHECK(result.error.empty());
    CHECK(memory == expected);
}

TEST_CASE("many small places of a file take few reads")
{
    directory const files;
    auto const bytes = content_of(2'000'000);
    auto const path = files.write("file", bytes);
    if (GENERATE(false, true))
        directory::evict(path);
    std::string memory(bytes.size(), '\xee');
    std::vector<placement> places;
    for (std::size_t at = 0; at + 50 <= bytes.size(); at += 100)
        places.push_back({at, span_of(memory).subspan(at, 50)});
    world in{any_transport()};
    outcome result;
    object file{in.io->get_executor(), *in.session, path, {.flows = 2, .chunk_size = 1 << 20}};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_fetch(places);
    });
    CHECK(result.error.empty());
    CHECK(file.stats().requests <= 4);
    CHECK(memory.substr(100, 50) == bytes.substr(100, 50));
}

TEST_CASE("a file that is not regular is refused by name")
{
    directory const files;
    world in{any_transport()};
    auto const fifo = files / "fifo";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    auto const directory_is = load(in, files / "");
    CHECK(directory_is.code == boost::system::errc::is_a_directory);
    CHECK_THAT(directory_is.error, ContainsSubstring("it is a directory"));
    auto const fifo_is = load(in, fifo);
    CHECK(fifo_is.code == boost::system::errc::invalid_argument);
    CHECK_THAT(fifo_is.error, ContainsSubstring(fifo) && ContainsSubstring("it is a FIFO"));
    CHECK_THAT(load(in, "/dev/null").error, ContainsSubstring("it is a device"));
    auto const missing = load(in, files / "missing");
    CHECK(missing.code == boost::system::errc::no_such_file_or_directory);
    CHECK_THAT(missing.error, ContainsSubstring("open") && ContainsSubstring(files / "missing"));
}

TEST_CASE("a file that changes during a read is an error, and not zeros")
{
    directory const files{place_for_files()};
    auto const path = files.write("file", content_of(500'000));
    if (GENERATE(false, true))
        directory::evict(path);
    auto const is_cut = GENERATE(true, false);
    world in{any_transport()};
    outcome result;
    object file{in.io->get_executor(), *in.session, path, options_for_tests()};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        if (is_cut)
            std::filesystem::resize_file(path, 250'000);
        else
            std::ofstream{path, std::ios::binary | std::ios::app} << "more";
        result.bytes.assign(file.size(), '\xee');
        placement const all{0, span_of(result.bytes)};
        co_await file.async_fetch({&all, 1});
    });
    CHECK(result.code == ingest::errc::object_changed);
    CHECK_THAT(result.error, ContainsSubstring(path) && ContainsSubstring("another process"));
}

TEST_CASE("ranges beyond a file's end are refused")
{
    directory const files;
    auto const path = files.write("file", content_of(1'000));
    world in{any_transport()};
    outcome result;
    object file{in.io->get_executor(), *in.session, path, options_for_tests()};
    std::string bytes(1'001, ' ');
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_read_front(host_span{std::span{bytes}});
    });
    CHECK(result.code == asio::error::eof);
    CHECK_THAT(result.error, ContainsSubstring("1000 bytes"));
    run(in, result, [&]() -> asio::awaitable<void> {
        placement const all{0, span_of(bytes)};
        co_await file.async_fetch({&all, 1});
    });
    CHECK(result.code == gpurx::errc::bad_destination);
}

TEST_CASE("a file's ETag tells when it was written anew")
{
    directory const files;
    auto const path = files.write("file", "one");
    world in{any_transport()};
    outcome result;
    object first{in.io->get_executor(), *in.session, path};
    object second{in.io->get_executor(), *in.session, path};
    object third{in.io->get_executor(), *in.session, path};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await first.async_open();
        co_await second.async_open();
        static_cast<void>(files.write("other", "two"));
        std::filesystem::rename(files / "other", path);
        co_await third.async_open();
    });
    CHECK(result.error.empty());
    CHECK(first.etag() == second.etag());
    CHECK(first.etag() != third.etag());
    CHECK(first.url() == path);
}

TEST_CASE("a load of a file that is cancelled ends, and writes nothing any more")
{
    directory const files;
    auto const path = files.write("file", content_of(8'000'000));
    directory::evict(path);
    world in{any_transport()};
    std::string bytes(8'000'000, ' ');
    asio::cancellation_signal signal;
    std::optional<std::exception_ptr> ended;
    object file{in.io->get_executor(), *in.session, path, options_for_tests()};
    asio::co_spawn(
        *in.io,
        [&]() -> asio::awaitable<void> {
            co_await file.async_open();
            placement const all{0, span_of(bytes)};
            co_await file.async_fetch({&all, 1});
        },
        asio::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr failure) { ended = failure; }));
    in.run_until([&] { return file.stats().bytes_placed > 0; });
    signal.emit(asio::cancellation_type::terminal);
    in.run_until([&] { return ended.has_value(); });
    REQUIRE(*ended);
    try {
        std::rethrow_exception(*ended);
    } catch (boost::system::system_error const& error) {
        CHECK(error.code() == asio::error::operation_aborted);
    }
    auto const copy = bytes;
    in.settle();
    CHECK(bytes == copy);
}

TEST_CASE("an io_context that is destroyed takes the load of a file with it")
{
    directory const files;
    auto const path = files.write("file", content_of(8'000'000));
    directory::evict(path);
    world in{any_transport()};
    std::string bytes(8'000'000, ' ');
    auto file = std::make_shared<object>(in.io->get_executor(), *in.session, path, options_for_tests());
    asio::co_spawn(
        *in.io,
        [&bytes, file]() -> asio::awaitable<void> {
            co_await file->async_open();
            placement const all{0, span_of(bytes)};
            co_await file->async_fetch({&all, 1});
        },
        [](std::exception_ptr const&) {});
    in.run_until([&] { return file->stats().bytes_placed > 0; });
    file.reset();
    in.io.reset();
    auto const copy = bytes;
    while (!others_sleep())
        std::this_thread::yield();
    CHECK(bytes == copy);
}

TEST_CASE("a file is read on several threads of its executor")
{
    directory const files;
    auto const expected = content_of(3'000'000);
    auto const path = files.write("file", expected);
    directory::evict(path);
    fake_kernel kernel;
    test_session session{transport::copy, kernel, {}};
    asio::io_context io{4};
    std::string bytes(expected.size(), ' ');
    object file{io.get_executor(),
                *session,
                path,
                {.flows = 6, .chunk_size = 10'000, .crc32c = ingest::fetch_options::checksum::always}};
    placement const all{0, span_of(bytes)};
    std::exception_ptr failure;
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
            co_await file.async_open();
            co_await file.async_fetch({&all, 1});
        },
        [&](std::exception_ptr error) { failure = error; });
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 4; ++i)
            threads.emplace_back([&] { io.run(); });
    }
    CHECK_FALSE(failure);
    CHECK(bytes == expected);
    CHECK(file.crc32c() == crc_of(expected));
}

TEST_CASE("a file that is not done at the deadline is given up")
{
    directory const files;
    auto const path = files.write("file", content_of(100'000));
    auto options = options_for_tests();
    options.deadline = 1ms;
    world in{any_transport()};
    outcome result;
    object file{in.io->get_executor(), *in.session, path, options};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        asio::steady_timer deadline{*in.io, 2ms};
        co_await deadline.async_wait(asio::use_awaitable);
        result.bytes.assign(file.size(), '\xee');
        placement const all{0, span_of(result.bytes)};
        co_await file.async_fetch({&all, 1});
    });
    CHECK(result.code == ingest::errc::gave_up);
}

}  // namespace gpurx::test
