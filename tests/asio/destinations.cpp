// SPDX-License-Identifier: Apache-2.0
//
// Reads into several destinations in one operation.
#include <sys/mman.h>

#include <array>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cerrno>
#include <limits>
#include <list>
#include <span>
#include <vector>

#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

// Places next to each other, so that what they hold in a row is one piece of the pattern.
class places {
  public:
    [[nodiscard]] host_span host(std::size_t size)
    {
        auto* const at = bytes_.data() + used_;
        used_ += size;
        return {at, size};
    }
    [[nodiscard]] memory_span device(std::size_t size, memory_kind kind = memory_kind::host)
    {
        return {kind, reinterpret_cast<std::uintptr_t>(host(size).data()), size};
    }
    [[nodiscard]] asio::mutable_buffer buffer(std::size_t size) { return {host(size).data(), size}; }
    // The first `placed` are the stream's, from `offset`; the others were not touched.
    [[nodiscard]] bool hold(std::size_t placed, std::size_t offset = 0) const
    {
        return is_pattern(std::span{bytes_}.first(placed), offset) &&
               std::ranges::all_of(std::span{bytes_}.subspan(placed), [](std::byte b) { return b == std::byte{0xee}; });
    }

    // Parts in a row: how many bytes, and from where in the stream.
    [[nodiscard]] bool hold_parts(std::vector<std::pair<std::size_t, std::size_t>> const& parts) const
    {
        auto const* at = bytes_.data();
        for (auto const& [size, offset] : parts) {
            if (!is_pattern({at, size}, offset))
                return false;
            at += size;
        }
        return *at == std::byte{0xee};
    }

  private:
    std::vector<std::byte> bytes_ = std::vector<std::byte>(100000, std::byte{0xee});
    std::size_t used_ = 0;
};

void finish(world& in, completion_ptr const& got)
{
    in.run_until([&] { return got->done(); });
}

}  // namespace

TEST_CASE("a header and a body are read in one operation")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    places at;
    auto const got = make_completion();
    async_read(rx, std::array<destination, 4>{at.host(16), at.device(50000), at.device(3), at.buffer(5)}, noting{got});
    CHECK_FALSE(got->done());
    to.send(60000);
    finish(in, got);
    CHECK_FALSE(got->code);
    CHECK(got->bytes == 50024);
    CHECK(at.hold(50024));
    std::size_t rest = 50024;
    while (rest < 60000) {
        auto const more = make_completion();
        rx.async_receive(noting{more});
        finish(in, more);
        REQUIRE(is_pattern(more->loan, rest));
        rest += more->bytes;
    }
}

TEST_CASE("any sequence of destinations will do")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(100);
    places at;
    auto const got = make_completion();
    SECTION("a vector of destinations")
    {
        std::vector<destination> const list{at.host(40), at.device(60)};
        async_read(rx, list, noting{got});
    }
    SECTION("a span of them")
    {
        std::array const list{destination{at.host(40)}, destination{at.device(60)}};
        async_read(rx, std::span{list}, noting{got});
    }
    SECTION("what converts to one")
    {
        std::list<memory_span> const list{at.device(40), at.device(60)};
        async_read(rx, list, noting{got});
    }
    SECTION("buffers of Asio's")
    {
        std::vector<asio::mutable_buffer> const list{at.buffer(40), at.buffer(60)};
        async_read(rx, list, noting{got});
    }
    SECTION("one buffer")
    {
        async_read(rx, at.buffer(100), noting{got});
    }
    SECTION("one destination")
    {
        async_read(rx, destination{at.device(100)}, noting{got});
    }
    finish(in, got);
    CHECK(got->bytes == 100);
    CHECK(at.hold(100));
}

TEST_CASE("empty destinations take nothing")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    places at;
    auto const read = [&](auto const&... to_where) {
        auto got = make_completion();
        async_read(rx, std::array{destination{to_where}...}, noting{got});
        finish(in, got);
        return got;
    };
    CHECK_FALSE(read(host_span{}, memory_span{})->code);
    std::vector<destination> const none;
    auto const nowhere = make_completion();
    async_read(rx, none, noting{nowhere});
    finish(in, nowhere);
    CHECK_FALSE(nowhere->code);
    CHECK(rx.stats().receive_calls == 0);
    to.send(20);
    auto const first = at.host(5);
    auto const second = at.device(15);
    memory_span const none_on_gpu{memory_kind::device, 0, 0};
    CHECK(read(host_span{}, first, memory_span{}, none_on_gpu, second, host_span{})->bytes == 20);
    CHECK(at.hold(20));
}

TEST_CASE("the memory of the sequence may go once the operation has begun")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    places at;
    auto const got = make_completion();
    {
        std::vector<destination> list{at.host(10), at.host(20), at.host(30)};
        async_read(rx, std::span<destination const>{list}, noting{got});
        list.assign(3, destination{});
    }
    in.settle();
    to.send(60);
    finish(in, got);
    CHECK(got->bytes == 60);
    CHECK(at.hold(60));
}

TEST_CASE("tokens that begin later keep a copy of the sequence")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    places at;
    auto begin = [&] {
        std::vector<destination> list{at.host(10), at.host(20)};
        return async_read(rx, list, asio::deferred);
    }();
    auto begin_list = async_read(rx, std::array<destination, 2>{at.host(30), at.device(40)}, asio::deferred);
    to.send(100);
    auto const first = make_completion();
    std::move(begin)(noting{first});
    finish(in, first);
    auto const second = make_completion();
    std::move(begin_list)(noting{second});
    finish(in, second);
    CHECK(first->bytes == 30);
    CHECK(second->bytes == 70);
    CHECK(at.hold(100));
}

TEST_CASE("skipped bytes are consumed and not copied", "[native]")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    places at;
    auto const got = make_completion();
    async_read(
        rx,
        std::array<destination, 4>{destination::nowhere(1000), at.host(10), destination::nowhere(50000), at.device(20)},
        noting{got});
    to.send(60000);
    finish(in, got);
    CHECK_FALSE(got->code);
    CHECK(got->bytes == 51030);
    CHECK(at.hold_parts({{10, 1000}, {20, 51010}}));
    CHECK(rx.stats().bytes() >= 51030);
    auto const rest = make_completion();
    async_read(rx, destination::nowhere(8970), noting{rest});
    finish(in, rest);
    CHECK(rest->bytes == 8970);
    CHECK(rx.available() == 0);
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("destinations of more bytes than a size holds are refused, before anything happens")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(30);
    places at;
    constexpr auto most = std::numeric_limits<std::size_t>::max();
    std::vector<destination> list{destination::nowhere(most), at.host(16)};
    SECTION("by some") {}
    SECTION("the sum would be 0")
    {
        list = {at.host(16), destination::nowhere(most - 15)};
    }
    SECTION("by far")
    {
        list = {destination::nowhere(most), destination::nowhere(most), destination::nowhere(2), at.host(16)};
    }
    auto const got = make_completion();
    async_read(rx, list, noting{got});
    finish(in, got);
    CHECK(got->code == error::invalid_argument);
    CHECK(got->bytes == 0);
    CHECK(rx.why().operation == "read from");
    CHECK(rx.why().advice.find("sum of the destinations' sizes exceeds") != std::string::npos);
    CHECK(at.hold(0));
    places again;
    auto const read = make_completion();
    async_read(rx, again.host(30), noting{read});
    finish(in, read);
    CHECK_FALSE(read->code);
    CHECK(again.hold(30));
}

TEST_CASE("more may be skipped than the kernel counts in one call", "[native]")
{
    world in{any_transport()};
    auto const size = GENERATE(std::size_t{1} << 63, std::numeric_limits<std::size_t>::max());
    sender to{in.wires};
    auto rx = in.flow(to);
    places at;
    asio::cancellation_signal signal;
    auto const got = make_completion();
    async_read(rx, destination::nowhere(size), asio::bind_cancellation_slot(signal.slot(), noting{got}));
    to.send(5000);
    in.settle();
    CHECK_FALSE(got->done());
    signal.emit(asio::cancellation_type::partial);
    finish(in, got);
    CHECK(got->code == error::operation_aborted);
    CHECK(got->bytes == 5000);
    to.send(10);
    auto const rest = make_completion();
    async_read(rx, at.host(10), noting{rest});
    finish(in, rest);
    CHECK_FALSE(rest->code);
    CHECK(at.hold(10, 5000));
}

TEST_CASE("a call that the kernel refuses ends the operation, and not the stream")
{
    auto const kind = any_transport();
    world in{kind};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(30);
    auto const refusal = kind == transport::zcrx ? EINVAL : GENERATE(EINVAL, EFAULT);
    in.kernel.fail_receive(refusal);
    places at;
    auto const got = make_completion();
    async_read(rx, at.host(30), noting{got});
    finish(in, got);
    CHECK(got->code == error_code(refusal, boost::system::system_category()));
    CHECK(got->bytes == 0);
    places again;
    auto const read = make_completion();
    async_read(rx, again.host(30), noting{read});
    finish(in, read);
    CHECK_FALSE(read->code);
    CHECK(again.hold(30));
}

TEST_CASE("memory that cannot be written is an error of the read alone, and what fitted before it is placed")
{
    world in{transport::copy};  // with devmem the library writes there itself
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(30);
    auto* const forbidden = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(forbidden != MAP_FAILED);
    places at;
    auto const got = make_completion();
    async_read(rx, std::array<destination, 2>{at.host(10), host_span{static_cast<std::byte*>(forbidden), 20}},
               noting{got});
    finish(in, got);
    CHECK(got->code == error::fault);
    CHECK(got->bytes == 10);
    CHECK(rx.why().advice.find("cannot be written") != std::string::npos);
    auto const read = make_completion();
    async_read(rx, at.host(20), noting{read});
    finish(in, read);
    CHECK_FALSE(read->code);
    CHECK(at.hold(30));
    ::munmap(forbidden, 4096);
}

TEST_CASE("a stream that ends between two destinations reports the total of placed bytes")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    places at;
    to.send(30);
    to.finish();
    auto const got = make_completion();
    async_read(rx, std::array<destination, 2>{at.host(20), at.host(100)}, noting{got});
    finish(in, got);
    CHECK(got->code == error::eof);
    CHECK(got->bytes == 30);
    CHECK(at.hold(30));
}

TEST_CASE("a cancelled read of a sequence reports the placed bytes, and the rest can be read")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    places at;
    asio::cancellation_signal signal;
    auto const got = make_completion();
    async_read(rx, std::array<destination, 2>{at.host(20), at.host(100)},
               asio::bind_cancellation_slot(signal.slot(), noting{got}));
    to.send(50);
    in.settle();
    signal.emit(asio::cancellation_type::partial);
    finish(in, got);
    CHECK(got->code == error::operation_aborted);
    CHECK(got->bytes == 50);
    CHECK(at.hold(50));
    to.send(10);
    places next;
    auto const more = make_completion();
    async_read(rx, next.host(10), noting{more});
    finish(in, more);
    CHECK(next.hold(10, 50));
}

TEST_CASE("one destination that cannot be used refuses all, before anything happens")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(30);
    places at;
    auto const got = make_completion();
    async_read(rx, std::array<destination, 2>{at.host(10), at.device(20, memory_kind::device)}, noting{got});
    finish(in, got);
    CHECK(got->code == errc::bad_destination);
    CHECK(got->bytes == 0);
    CHECK(at.hold(0));
    places again;
    auto const read = make_completion();
    async_read(rx, again.host(30), noting{read});
    finish(in, read);
    CHECK(again.hold(30));
}

TEST_CASE("coroutines read sequences")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    places at;
    to.send(100);
    std::size_t placed = 0;
    asio::co_spawn(
        *in.io,
        [&]() -> asio::awaitable<void> {
            placed = co_await async_read(rx, std::array<destination, 2>{at.host(16), at.device(84)});
        },
        asio::detached);
    in.run_until([&] { return placed > 0; });
    CHECK(placed == 100);
    CHECK(at.hold(100));
}

}  // namespace gpurx::test
