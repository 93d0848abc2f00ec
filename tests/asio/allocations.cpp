// SPDX-License-Identifier: Apache-2.0
//
// After the first few calls nothing is allocated per receive, by the library or by Asio on its behalf.
#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstdlib>
#include <functional>
#include <memory>
#include <semaphore>
#include <thread>
#include <type_traits>
#include <vector>

#include "allocation_counter.hpp"
#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

constexpr int warm_up = 40;
constexpr int measured = 200;

// What a receiver's handlers run on.
enum class place { context, strand, erased_strand, pool_strand, bound_strand, bound_erased_strand, bound_pool_strand };

enum class call { receive, at_most, exactly, read, read_some };

template <class Token>
void begin(call what, receiver& rx, std::vector<std::byte>& body, Token token)
{
    switch (what) {
        case call::receive:
            rx.async_receive(std::move(token));
            break;
        case call::at_most:
            rx.async_receive(body.size(), std::move(token));
            break;
        case call::exactly:
            rx.async_receive_exactly(body.size(), std::move(token));
            break;
        case call::read:
            async_read(rx, host_span{body}, std::move(token));
            break;
        case call::read_some:
            rx.async_read_some(asio::buffer(body), std::move(token));
            break;
    }
}

// What the fake kernel allocates is not the library's.
std::size_t library_allocations(fake_kernel& kernel)
{
    kernel.set_allocation_counter(allocations);
    return allocations() - kernel.allocations();
}

}  // namespace

TEST_CASE("this program counts allocations")
{
    auto const before = allocations();
    auto const memory = std::make_unique<int>(5);
    CHECK(allocations() == before + 1);
    void* volatile aligned = std::aligned_alloc(64, 64);  // volatile: or the pair of calls is optimized away
    std::free(aligned);
    CHECK(allocations() == before + 2);
}

TEST_CASE("no allocation per receive or read after the first few, with callbacks")
{
    world in{any_transport(), {.receive_memory = pages(1024)}};
    auto const wait = GENERATE(false, true);
    auto const what = GENERATE(call::receive, call::at_most, call::exactly, call::read, call::read_some);
    auto const where = GENERATE(place::context, place::strand, place::erased_strand, place::pool_strand,
                                place::bound_strand, place::bound_erased_strand, place::bound_pool_strand);
    INFO((wait ? "each waits" : "data are there")
         << ", call " << static_cast<int>(what) << ", executor " << static_cast<int>(where));
    sender to{in.wires};
    // Runs pool_strand and bound_pool_strand.
    asio::thread_pool pool{1};
    asio::any_io_executor const context = in.io->get_executor();
    asio::any_io_executor own = context;
    if (where == place::strand)
        own = asio::make_strand(*in.io);
    else if (where == place::erased_strand)
        own = asio::make_strand(context);
    else if (where == place::pool_strand)
        own = asio::make_strand(pool);
    else if (where == place::bound_pool_strand)
        own = pool.get_executor();
    auto rx = in.flow(to, own);
    asio::any_io_executor const there =
        where == place::bound_strand ? asio::make_strand(rx.get_executor()) : rx.get_executor();
    // Not erased by the program, which would do it once.
    auto const strand = asio::make_strand(rx.get_executor());
    auto const of_pool = asio::make_strand(pool);
    std::vector<std::byte> body(9000);
    std::size_t received = 0;
    std::size_t in_sender = 0;
    std::size_t before = 0;
    std::size_t after = 0;
    int calls = 0;
    std::counting_semaphore<> wanted{0};
    auto const send = [&] {
        auto const now = allocations();
        to.send(9000);
        if (!wait)
            in_sender += allocations() - now;
    };
    // All in one run(): Asio keeps memory for later use that long.
    std::function<void()> next = [&] {
        if (++calls == warm_up)
            before = library_allocations(in.kernel) - in_sender;
        if (calls == warm_up + measured) {
            after = library_allocations(in.kernel) - in_sender;
            return;
        }
        if (!wait)
            send();
        auto const done = [&](error_code code, auto const& got) {
            if constexpr (std::is_same_v<decltype(got), rx_buffer const&>)
                received += code ? 0 : got.size();
            else
                received += code ? 0 : got;
            next();
        };
        if (where == place::bound_strand)
            begin(what, rx, body, asio::bind_executor(there, done));
        else if (where == place::bound_erased_strand)
            begin(what, rx, body, asio::bind_executor(strand, done));
        else if (where == place::bound_pool_strand)
            begin(what, rx, body, asio::bind_executor(of_pool, done));
        else
            begin(what, rx, body, done);
        if (wait)
            wanted.release();
    };
    asio::post(where == place::bound_erased_strand ? asio::any_io_executor{strand} : there, next);
    // Another thread sends for those that wait: a post would take the place of one in Asio's small store of memory.
    std::thread feeder{[&] {
        for (int i = 1; wait && i < warm_up + measured; ++i) {
            wanted.acquire();
            send();
        }
    }};
    in.io->run();
    pool.join();
    feeder.join();
    CHECK(after == before);
    CHECK(received == to.sent());
    CHECK((rx.stats().waits > measured) == wait);
}

TEST_CASE("no allocation per receive or read after the first few, in a coroutine that keeps loans")
{
    world in{any_transport(), {.receive_memory = pages(1024)}};
    sender to{in.wires};
    std::size_t in_library = 0;
    bool finished = false;
    auto const consume = [&](receiver rx) -> asio::awaitable<void> {
        std::array<rx_buffer, 5> kept;
        std::vector<std::byte> body(20000);
        for (std::size_t i = 0; i < warm_up + measured; ++i) {
            if (i == warm_up)
                in_library = 0;
            to.send(9000 + body.size());
            auto const before = library_allocations(in.kernel);
            co_await async_read(rx, host_span{body.data(), body.size()});
            for (std::size_t rest = 9000; rest > 0;) {
                auto loan = co_await rx.async_receive();
                rest -= loan.size();
                kept[i % kept.size()] = std::move(loan);
            }
            in_library += library_allocations(in.kernel) - before;
        }
        finished = true;
    };
    asio::co_spawn(*in.io, consume(in.flow(to)), asio::detached);
    in.run_until([&] { return finished; });
    CHECK(in_library == 0);
}

TEST_CASE("no allocation per frame after the first few: a header to the host, its body on loan")
{
    constexpr std::size_t header_size = 16;
    world in{any_transport(), {.receive_memory = pages(1024)}};
    sender to{in.wires};
    std::size_t in_library = 0;
    bool finished = false;
    auto const consume = [&](receiver rx) -> asio::awaitable<void> {
        std::array<rx_buffer, 5> kept;
        std::array<std::byte, header_size> header;
        constexpr auto token = asio::as_tuple(asio::use_awaitable);
        for (std::size_t i = 0; i < 4 * (warm_up + measured); ++i) {
            if (i == 4 * warm_up)
                in_library = 0;
            if (i % 4 == 0)
                to.send(4 * (header_size + 30000));
            auto const before = library_allocations(in.kernel);
            co_await async_read(rx, host_span{header}, token);
            auto [failed, front] = co_await rx.async_receive(100, token);
            auto [short_of, body] = co_await rx.async_receive_exactly(30000 - front.size(), token);
            if (failed || short_of)
                co_return;
            kept[i % kept.size()] = std::move(body);
            front.release();
            in_library += library_allocations(in.kernel) - before;
        }
        finished = true;
    };
    asio::co_spawn(*in.io, consume(in.flow(to)), asio::detached);
    in.run_until([&] { return finished; });
    CHECK(in_library == 0);
}

TEST_CASE("small segments for a receive of an exact size need no record for each byte")
{
    auto const kind = any_transport();
    auto const on_host = GENERATE(true, false);
    world in{kind, {.receive_memory = pages(1024), .loan_limit = pages(1024)}};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::size_t const bytes = 800;
    auto const got = make_completion();
    rx.async_receive_exactly(bytes, noting{got});
    std::size_t in_library = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
        if (on_host)
            in.kernel.deliver({{fake_kernel::way::linear, 1, 0}});
        to.send(1);
        auto const before = library_allocations(in.kernel);
        in.run_until([&] { return rx.available() == i + 1 || got->done(); });
        in.settle();
        in_library += library_allocations(in.kernel) - before;
    }
    REQUIRE(got->done());
    CHECK_FALSE(got->code);
    CHECK(got->bytes == bytes);
    CHECK(is_pattern(got->loan, 0));
    CHECK(in_library < bytes / 10);
    got->loan.release();
    CHECK(in.kernel.tokens_out() == 0);
}

}  // namespace gpurx::test
