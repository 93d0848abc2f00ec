// SPDX-License-Identifier: Apache-2.0
//
// Transport copy into a GPU's memory: how few copies, receives and waits it takes, and that no byte stays behind.
#include <sys/socket.h>

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <deque>
#include <thread>

#include "fake_world.hpp"

namespace gpurx::test {

namespace {

constexpr std::size_t chunk = 512 << 10;

// A read into a tensor, one at a time.
struct copying : clean_driver, gpu_world {
    sender to{wires};
    receiver rx{flow(to)};
    gpu_test_stream stream{gpu_or_skip()};
    gpu_bytes tensor{gpu_or_skip(), 4 * chunk};
    std::size_t const copies_before = fake_cuda::calls("cuMemcpyHtoDAsync");
    std::size_t const records_before = fake_cuda::calls("cuEventRecord");

    ~copying() { stream.finish(); }
    [[nodiscard]] completion_ptr start(std::size_t size)
    {
        auto result = make_completion();
        async_read(rx, tensor.span().first(size), stream.ref(), noting{result});
        settle();
        return result;
    }
    [[nodiscard]] std::size_t copies() const { return fake_cuda::calls("cuMemcpyHtoDAsync") - copies_before; }
    [[nodiscard]] std::size_t records() const { return fake_cuda::calls("cuEventRecord") - records_before; }
    // The bytes that make the socket readable.
    [[nodiscard]] std::size_t mark() const
    {
        int bytes = 0;
        socklen_t size = sizeof bytes;
        REQUIRE(::getsockopt(rx.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &bytes, &size) == 0);
        return static_cast<std::size_t>(bytes);
    }
    // The first `placed` are the stream's, and no others were written.
    [[nodiscard]] bool holds(std::size_t placed)
    {
        stream.finish();
        auto const bytes = tensor.read();
        return is_pattern(std::span{bytes}.first(placed), 0) &&
               std::ranges::all_of(std::span{bytes}.subspan(placed), [](std::byte b) { return b == std::byte{0xee}; });
    }
};

}  // namespace

TEST_CASE("a read by transport copy makes one copy of what many receives bring, with one event")
{
    copying in;
    auto const result = in.start(100'000);
    for (int i = 0; i < 10; ++i) {
        CHECK(in.copies() == 0);
        in.to.send(10'000);
        in.settle();
    }
    REQUIRE(result->done());
    CHECK(in.rx.stats().receive_calls >= 10);
    CHECK(in.copies() == 1);
    CHECK(in.records() == 1);
    CHECK(in.holds(100'000));
}

TEST_CASE("a read by transport copy makes a copy when a chunk is full")
{
    copying in;
    auto const result = in.start(2 * chunk + 1000);
    std::thread feeder{[&] { in.to.send(2 * chunk + 1000); }};
    in.run_until([&] { return result->done(); });
    feeder.join();
    CHECK(result->bytes == 2 * chunk + 1000);
    CHECK(in.copies() == 3);
    CHECK(in.records() == 3);
    CHECK(in.holds(2 * chunk + 1000));
}

TEST_CASE("a read by transport copy that ends early has all bytes that it reports in place")
{
    copying in;
    auto const result = in.start(100'000);
    in.to.send(3000);
    in.settle();
    CHECK(in.copies() == 0);
    auto const end = GENERATE(0, 1, 2);
    CAPTURE(end);
    if (end == 0)
        in.rx.cancel();
    else if (end == 1)
        in.rx.close();
    else
        in.to.finish();
    in.settle();
    REQUIRE(result->done());
    CHECK(result->code == (end == 2 ? error_code{asio::error::eof} : asio::error::operation_aborted));
    CHECK(result->bytes == 3000);
    CHECK(in.copies() == 1);
    CHECK(in.holds(3000));
}

TEST_CASE("parts of a read by transport copy that are not adjacent are copied each")
{
    copying in;
    auto result = make_completion();
    std::array<destination, 2> const parts{destination{in.tensor.span().first(5000), in.stream.ref()},
                                           destination{in.tensor.span().subspan(8000, 5000), in.stream.ref()}};
    async_read(in.rx, std::span{parts}, noting{result});
    in.to.send(10'000);
    in.run_until([&] { return result->done(); });
    CHECK(result->bytes == 10'000);
    CHECK(in.copies() == 2);
    in.stream.finish();
    auto const bytes = in.tensor.read();
    CHECK(is_pattern(std::span{bytes}.first(5000), 0));
    CHECK(is_pattern(std::span{bytes}.subspan(8000, 5000), 5000));
}

TEST_CASE("a read by transport copy does not report bytes that the driver refused to copy")
{
    copying in;
    auto const result = in.start(100'000);
    in.to.send(3000);
    in.settle();
    fake_cuda::fail("cuMemcpyHtoDAsync", CUDA_ERROR_UNKNOWN);
    in.to.send(97'000);
    in.run_until([&] { return result->done(); });
    CHECK(result->code == detail::cuda::error_of(CUDA_ERROR_UNKNOWN));
    CHECK(result->bytes == 0);
    CHECK(in.start(10)->code == detail::cuda::error_of(CUDA_ERROR_UNKNOWN));
}

TEST_CASE("a read by transport copy waits until many bytes have come, and never for more than it lacks")
{
    copying in;
    auto const size = 3 * chunk;
    auto const result = in.start(size);
    CHECK(in.mark() > 1);
    CHECK(in.mark() <= size);
    auto const below = in.mark() - 1;
    {
        std::jthread const feeder{[&] { in.to.send(below); }};
        REQUIRE(soon([&] { return in.rx.available() == below; }));
    }
    in.settle();
    CHECK(in.rx.available() == below);  // they stay there
    // Where the reader stops depends on how the bytes come, and so does what it still lacks.
    bool fed = false;
    std::thread feeder{[&] {
        in.to.send(size - 200'000 - below);
        asio::post(*in.io, [&] { fed = true; });
    }};
    in.run_until([&] { return fed; });
    feeder.join();
    in.settle();
    CHECK(in.mark() == 200'000 + in.rx.available());
    in.to.send(199'999);
    in.settle();
    CHECK_FALSE(result->done());
    in.to.send(1);
    in.run_until([&] { return result->done(); });
    CHECK(result->bytes == size);
    CHECK(in.mark() == 1);
    CHECK(in.holds(size));
}

TEST_CASE("the last bytes before the end of a connection end a read by transport copy")
{
    copying in;
    auto const result = in.start(chunk);
    in.to.send(1000);
    in.to.finish();
    in.run_until([&] { return result->done(); });
    CHECK(result->code == asio::error::eof);
    CHECK(result->bytes == 1000);
    CHECK(in.mark() == 1);
    CHECK(in.holds(1000));
}

TEST_CASE("only a read that lacks many bytes raises the mark of its socket, and lowers it at its end")
{
    copying in;
    SECTION("cancelled")
    {
        auto const result = in.start(chunk);
        CHECK(in.mark() > 1);
        in.rx.cancel();
        in.settle();
        CHECK(result->done());
        CHECK(in.mark() == 1);
    }
    SECTION("into memory of the host")
    {
        auto result = make_completion();
        std::vector<std::byte> to(chunk);
        async_read(in.rx, asio::buffer(to), noting{result});
        in.settle();
        CHECK(in.mark() == chunk);
        in.to.send(chunk);
        in.run_until([&] { return result->done(); });
        CHECK(in.mark() == 1);
        CHECK(is_pattern(to, 0));
    }
    SECTION("the program's own mark")
    {
        int const own = 100;
        REQUIRE(::setsockopt(in.rx.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &own, sizeof own) == 0);
        auto const result = in.start(chunk);
        CHECK(in.mark() > 100);
        in.rx.cancel();
        in.settle();
        CHECK(in.mark() == 100);
    }
    SECTION("of few bytes")
    {
        auto const result = in.start(1000);
        CHECK(in.mark() == 1);
        in.to.send(1000);
        in.run_until([&] { return result->done(); });
    }
    SECTION("of some bytes")
    {
        auto result = make_completion();
        std::vector<std::byte> to(chunk);
        in.rx.async_read_some(asio::buffer(to), noting{result});
        in.settle();
        CHECK(in.mark() == 1);
        in.to.send(1);
        in.run_until([&] { return result->done(); });
        CHECK(result->bytes == 1);
    }
    SECTION("a loan")
    {
        auto result = make_completion();
        in.rx.async_receive(noting{result});
        in.settle();
        CHECK(in.mark() == 1);
        in.to.send(1);
        in.run_until([&] { return result->done(); });
    }
}

TEST_CASE("a loan by transport copy takes one copy, though loans return in the order that they came in")
{
    copying in;
    std::deque<rx_buffer> out;
    std::size_t loans = 0;
    for (int i = 0; i < 600; ++i) {
        in.to.send(30'000);
        for (auto& loan : receive_all(in, in.rx, 30'000)) {
            out.push_back(std::move(loan));
            ++loans;
        }
        while (out.size() > 10)
            out.pop_front();
    }
    // Where the memory ends there are two.
    CHECK(in.copies() <= loans + loans / 20);
}

TEST_CASE("the copies of transport copy have one event for each loan that a stream acquires")
{
    copying in;
    std::size_t loans = 0;
    for (std::size_t got = 0; got < 4 * chunk;) {
        in.to.send(30'000);
        auto loan = std::move(receive_bytes(in, in.rx)->loan);
        got += loan.size();
        loan.acquire(in.stream.ref());
        CHECK(in.records() == ++loans);
        loan.acquire(in.stream.ref());  // nothing new
        CHECK(in.records() == loans);
    }
}

}  // namespace gpurx::test
