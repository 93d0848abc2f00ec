// SPDX-License-Identifier: Apache-2.0
//
// What tests of objects of servers have in common: a world to fetch in, and what came of it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <gpurx/ingest/object.hpp>
#include <optional>
#include <span>
#include <string>

#include "fake_clock.hpp"
#include "http_server.hpp"
#include "test_pattern.hpp"
#include "world.hpp"

namespace gpurx::test {

inline std::string content_of(std::size_t size)
{
    std::string bytes(size, '\0');
    fill_with_pattern(std::as_writable_bytes(std::span{bytes}), 0);
    return bytes;
}

inline memory_span span_of(std::string& bytes)
{
    return {memory_kind::host, reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size()};
}

inline ingest::fetch_options options_for_tests()
{
    return {.flows = 3, .chunk_size = 10'000, .timeout = 30s, .attempts = 3};
}

// A variable of the environment, for as long as this lives.
class set_variable {
  public:
    set_variable(char const* name, std::string const& value) : name_{name} { ::setenv(name, value.c_str(), 1); }
    set_variable(set_variable const&) = delete;
    set_variable& operator=(set_variable const&) = delete;
    ~set_variable() { ::unsetenv(name_); }

  private:
    char const* name_;
};

// What came of a download.
struct outcome {
    std::string bytes;
    std::string error;  // its text; empty: none
    error_code code;
    ingest::fetch_stats stats;
    std::optional<std::uint32_t> crc;
    bool ranges = false;
};

// Runs handlers until `ready`. The program's own clock stands still where that is possible: then time passes only while
// everybody waits for it.
template <class Ready>
void run_until(world& in, Ready ready)
{
    if (!fake_clock::is_linked())
        return in.run_until(ready);
    fake_clock clock;
    auto const ended = clock.run_until(*in.io, ready);
    REQUIRE(ended);
}

// Runs the coroutine on the world's io_context.
template <class Work>
void run(world& in, outcome& result, Work work)
{
    bool done = false;
    asio::co_spawn(*in.io, std::move(work), [&](std::exception_ptr failure) {
        done = true;
        try {
            if (failure)
                std::rethrow_exception(failure);
        } catch (boost::system::system_error const& error) {
            result.code = error.code();
            result.error = error.what();
        }
    });
    run_until(in, [&] { return done; });
}

// The whole object.
inline outcome fetch(world& in, std::string const& url, ingest::fetch_options const& options = options_for_tests())
{
    outcome result;
    ingest::object object{in.io->get_executor(), *in.session, url, options};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await object.async_open();
        result.bytes.assign(object.size(), '\xee');
        ingest::placement const all{0, span_of(result.bytes)};
        co_await object.async_fetch({&all, 1});
    });
    result.stats = object.stats();
    result.crc = object.crc32c();
    result.ranges = object.serves_ranges();
    return result;
}

inline outcome fetch_from(http_server const& server, ingest::fetch_options const& options = options_for_tests())
{
    world in{any_transport(), {.max_flows = 5}};
    return fetch(in, server.url(), options);
}

}  // namespace gpurx::test
