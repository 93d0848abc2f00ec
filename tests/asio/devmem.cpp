// SPDX-License-Identifier: Apache-2.0
//
// Transport devmem against the fake kernel: the kinds of data that arrive, and what can go wrong with them.
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <random>
#include <set>
#include <vector>

#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;
using way = fake_kernel::way;

constexpr std::uint32_t own = test_session::first_id;
constexpr std::uint32_t other = 8;
constexpr std::uint32_t stranger = 9;

// All of the stream up to `end`, checked; what was lent is given back.
void receive_all(world& in, receiver& rx, std::size_t end)
{
    for (std::size_t received = 0; received < end;) {
        auto const got = receive(in, rx);
        REQUIRE_FALSE(got->code);
        REQUIRE(is_pattern(got->loan, received));
        received += got->bytes;
    }
}

error_code protocol_error()
{
    return {EPROTO, boost::system::system_category()};
}

}  // namespace

TEST_CASE("bytes in device memory are delivered where they lie")
{
    world in{transport::devmem};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(20000);
    auto const got = receive(in, rx);
    CHECK(got->bytes == 20000);
    CHECK(got->loan.fragments().size() == 5);
    for (auto const& piece : got->loan.fragments())
        CHECK(lies_in(piece, in.session.state()));
    CHECK(is_pattern(got->loan, 0));
    auto const seen = rx.stats();
    CHECK(seen.device_bytes == 20000);
    CHECK(seen.tokens_out == 5);
    CHECK(seen.tokens_high_water == 5);
    CHECK(seen.release_calls == 0);
    got->loan.release();
    CHECK(rx.stats().tokens_out == 0);
    CHECK(rx.stats().tokens_high_water == 5);
    CHECK(rx.stats().release_calls == 1);
    CHECK((*in.session).stats().tokens_high_water == 5);
}

TEST_CASE("fragments that are adjacent are told as one, and every token goes back")
{
    world in{transport::devmem};
    sender to{in.wires};
    auto rx = in.flow(to);
    SECTION("pages in ascending order")
    {
        in.kernel.set_ascending(true);
        in.kernel.set_fragment_size(pages(1));
        to.send(pages(10));
        auto const got = receive(in, rx);
        CHECK(got->loan.fragments().size() == 1);
        CHECK(rx.stats().tokens_out == 10);
        CHECK(rx.stats().fragments == 1);
        got->loan.release();
        REQUIRE(in.kernel.releases().size() == 1);
        CHECK(in.kernel.releases()[0].entries == 1);
    }
    SECTION("several packets on one page")
    {
        in.kernel.set_packing(true);
        in.kernel.set_fragment_size(1448);
        to.send(4096);
        auto const got = receive(in, rx);
        CHECK(got->loan.fragments().size() == 1);
        CHECK(rx.stats().tokens_out == 3);
        CHECK(in.kernel.free_pages(own) == in.session.state().memory().span().size() / pages(1) - 1);
        got->loan.release();
        CHECK(in.kernel.free_pages(own) == in.session.state().memory().span().size() / pages(1));
        REQUIRE(in.kernel.releases().size() == 1);
        // The number of the page three times, or three numbers in a row.
        CHECK(in.kernel.releases()[0].entries == (in.kernel.has_array_tokens() ? 3 : 1));
        CHECK(rx.stats().xarray_tokens == (in.kernel.has_array_tokens() ? 0 : 3));
    }
}

TEST_CASE("packets that the NIC did not split are delivered in their place")
{
    world in{transport::devmem};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::device, 5000, own}, {way::linear, 3000}, {way::device, 1, own}, {way::linear, 1}});
    to.send(8002);
    auto const got = receive(in, rx);
    CHECK(got->bytes == 8002);
    CHECK(is_pattern(got->loan, 0));
    CHECK(got->loan.fragments().size() == 5);
    CHECK_FALSE(lies_in(got->loan.fragments()[2], in.session.state()));
    CHECK(got->loan.fragments()[2].kind == memory_kind::host);
    CHECK(rx.stats().device_bytes == 5001);
    CHECK(rx.stats().linear_bytes == 3001);
    CHECK(rx.stats().bytes() == 8002);
}

TEST_CASE("bytes on the host stay while their loan lives")
{
    world in{nic_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<rx_buffer> kept;
    for (std::size_t received = 0; received < 5000; received += kept.back().size()) {
        in.kernel.deliver({{way::linear, 500}, {way::device, 500, own}});
        to.send(1000);
        kept.push_back(std::move(receive(in, rx)->loan));
    }
    std::size_t offset = 0;
    for (auto const& loan : kept) {
        CHECK(is_pattern(loan, offset));
        offset += loan.size();
    }
}

TEST_CASE("data that came by another way are delivered as host bytes")
{
    world in{nic_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::plain, 5000}, {way::device, 5000, own}, {way::plain, 10}});
    to.send(10010);
    std::vector<rx_buffer> kept;
    for (std::size_t received = 0; received < 10010; received += kept.back().size()) {
        kept.push_back(std::move(receive(in, rx)->loan));
        CHECK(is_pattern(kept.back(), received));
    }
    CHECK(kept.size() == 3);
    CHECK(rx.stats().host_bytes == 5010);
    CHECK(rx.stats().device_bytes == 5000);
    CHECK(rx.stats().fragments == kept[0].fragments().size() + kept[1].fragments().size() + 1);
    // All three are still what they were.
    CHECK(is_pattern(kept[0], 0));
    CHECK(is_pattern(kept[1], 5000));
    CHECK(is_pattern(kept[2], 10000));
}

TEST_CASE("memory for bytes on the host is used again")
{
    world in{nic_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::set<std::uintptr_t> addresses;
    for (int i = 0; i < 50; ++i) {
        in.kernel.deliver({{way::plain, 100}});
        to.send(100);
        auto const got = receive(in, rx);
        addresses.insert(got->loan.fragments()[0].address);
    }
    CHECK(addresses.size() <= 2);
}

TEST_CASE("bytes of each kind are read as well")
{
    world in{nic_transport()};
    in.kernel.set_fragment_size(1000);
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::plain, 10}, {way::device, 1500, own}, {way::linear, 20}, {way::device, 1500, own}});
    to.send(3030);
    std::vector<std::byte> bytes(3030);
    auto const got = make_completion();
    async_read(rx, host_span{bytes.data(), bytes.size()}, noting{got});
    in.run_until([&] { return got->done(); });
    CHECK(got->bytes == 3030);
    CHECK(is_pattern(bytes, 0));
}

TEST_CASE("a flow that moves to another session's queues goes on")
{
    world in{transport::devmem};
    test_session second{transport::devmem, in.kernel, {}, pages(1024), other};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::device, 5000, own}, {way::device, 6000, other}, {way::device, 100, own}});
    to.send(11100);
    auto const got = receive(in, rx);
    CHECK(got->bytes == 11100);
    CHECK(is_pattern(got->loan, 0));
    CHECK(lies_in(got->loan.fragments()[0], in.session.state()));
    CHECK(lies_in(got->loan.fragments()[2], second.state()));
    CHECK(rx.stats().device_bytes == 5100);
    CHECK(rx.stats().resteered_bytes == 6000);
    CHECK(rx.stats().tokens_out == 5);
    CHECK((*in.session).stats().tokens_high_water == 3);
    CHECK((*second).stats().tokens_high_water == 2);

    // The loan holds the other session's memory.
    second.drop();
    CHECK_FALSE(second.ended());
    CHECK(is_pattern(got->loan, 0));
    got->loan.release();
    CHECK(second.ended());
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("data in foreign memory end the flow, after the data before them")
{
    world in{nic_transport()};
    std::vector<std::byte> memory(1 << 20);
    in.kernel.bind(stranger, memory);
    sender to{in.wires};
    auto rx = in.flow(to);
    SECTION("behind good data")
    {
        in.kernel.deliver({{way::device, 5000, own}, {way::device, 5000, stranger}, {way::device, 5000, own}});
        to.send(15000);
        auto const got = receive(in, rx);
        CHECK_FALSE(got->code);
        CHECK(got->bytes == 5000);
        CHECK(is_pattern(got->loan, 0));
        CHECK(receive(in, rx)->code == errc::foreign_memory);
        CHECK(rx.stats().bytes() == 5000);
    }
    SECTION("at the front")
    {
        in.kernel.deliver({{way::device, 5000, stranger}});
        to.send(5000);
        CHECK(receive(in, rx)->code == errc::foreign_memory);
        CHECK(rx.stats().tokens_out == 0);
        CHECK(in.kernel.tokens_out() == 0);  // given back all the same
    }
    CHECK(receive(in, rx)->code == errc::foreign_memory);
}

TEST_CASE("a segment that is partly on the host ends the flow")
{
    world in{transport::devmem};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10);
    in.kernel.fail_receive(ENODEV);
    CHECK(receive(in, rx)->code == errc::mixed_fragments);
    CHECK(receive(in, rx)->code == errc::mixed_fragments);
}

TEST_CASE("a control buffer that is too small grows")
{
    world in{transport::devmem};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10000);
    SECTION("a few times")
    {
        in.kernel.fail_receive(detail::uapi::etoosmall, 3);
        receive_all(in, rx, 10000);
        CHECK(rx.stats().receive_calls == 4);
    }
    SECTION("not for ever")
    {
        in.kernel.fail_receive(detail::uapi::etoosmall, 1000);
        CHECK(receive(in, rx)->code == error_code(EMSGSIZE, boost::system::system_category()));
        CHECK(in.kernel.receive_calls() < 10);
    }
}

TEST_CASE("control messages of others, and MSG_CTRUNC that they cause, change nothing")
{
    world in{transport::devmem};
    in.kernel.set_noise(true);
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::device, 9000, own}, {way::linear, 500}});
    to.send(20000);
    receive_all(in, rx, 20000);
    CHECK(rx.stats().device_bytes == 19500);
}

TEST_CASE("a kernel that contradicts itself ends the flow, and no token is lost")
{
    world in{transport::devmem};
    sender to{in.wires};
    auto rx = in.flow(to);
    SECTION("more told than received")
    {
        in.kernel.lie_about_size(1);
        to.send(5000);
        auto const got = receive(in, rx);
        CHECK(got->code == error_code{});  // what was told is delivered first
        CHECK(receive(in, rx)->code == protocol_error());
    }
    SECTION("a piece beyond the end of the memory")
    {
        in.kernel.lie_about_offset();
        to.send(5000);
        CHECK(receive(in, rx)->code == protocol_error());
    }
    SECTION("linear bytes beyond what was offered")
    {
        in.kernel.deliver({{way::linear, 5000}});
        in.kernel.lie_about_size(1 << 30);
        to.send(5000);
        CHECK(receive(in, rx)->code == protocol_error());
    }
    CHECK(in.kernel.tokens_out() == 0);
    CHECK(rx.stats().tokens_out == 0);
}

TEST_CASE("pages that the kernel does not accept are counted, and not returned again")
{
    world in{transport::devmem};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(40960);
    auto const got = receive(in, rx);
    SECTION("tokens that are back already")
    {
        in.kernel.shorten_release(3);
        got->loan.release();
        CHECK(rx.stats().release_shortfalls == 3);
        CHECK(rx.stats().release_failures == 0);
        CHECK(in.kernel.tokens_out() == 0);
    }
    SECTION("a call that fails")
    {
        in.kernel.fail_release(ENOMEM);
        got->loan.release();
        CHECK(rx.stats().release_failures == 1);
        CHECK(rx.stats().release_shortfalls == 0);
        CHECK(in.kernel.tokens_out() == 10);  // the kernel takes them when the socket closes
        rx.close();
        in.kernel.reap_closed();
        CHECK(in.kernel.tokens_out() == 0);
    }
    CHECK(rx.stats().release_calls == 1);
    CHECK(rx.stats().tokens_out == 0);
}

TEST_CASE("without memory for a moment nothing is consumed, and the stream goes on")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(5000);
    in.kernel.fail_receive(ENOMEM);
    CHECK(receive(in, rx)->code == error_code{ENOMEM, boost::system::system_category()});
    auto const got = receive(in, rx);
    CHECK_FALSE(got->code);
    CHECK(is_pattern(got->loan, 0));
    std::vector<std::byte> bytes(2000);
    to.send(bytes.size());
    in.kernel.fail_receive(ENOMEM);
    auto const read = make_completion();
    async_read(rx, host_span{bytes.data(), bytes.size()}, noting{read});
    in.run_until([&] { return read->done(); });
    CHECK(read->code == error_code{ENOMEM, boost::system::system_category()});
    CHECK(read->bytes == 0);
    auto const again = make_completion();
    async_read(rx, host_span{bytes.data(), bytes.size()}, noting{again});
    in.run_until([&] { return again->done(); });
    CHECK_FALSE(again->code);
    CHECK(is_pattern(bytes, 5000));
}

TEST_CASE("loans of few bytes on the host share the memory that these lie in")
{
    world in{nic_transport()};
    auto const kind = GENERATE(way::linear, way::plain);
    sender to{in.wires};
    auto rx = in.flow(to);
    CHECK(rx.stats().host_memory == 0);
    std::vector<rx_buffer> kept;
    for (std::size_t i = 0; i < 500; ++i) {
        in.kernel.deliver({{kind, 1, 0}});
        to.send(1);
        kept.push_back(std::move(receive(in, rx)->loan));
        REQUIRE(is_pattern(kept.back(), i));
    }
    CHECK(rx.stats().host_memory <= 2 << 20);
    CHECK(in.session.state().total().host_memory == rx.stats().host_memory);
    for (std::size_t i = 0; i < 500; ++i)
        REQUIRE(is_pattern(kept[i], i));

    // Many bytes: as much as is on loan takes, and no more once it comes back.
    std::vector<rx_buffer> large;
    auto const from = to.sent();
    for (std::size_t at = 0; at < (6 << 20);) {
        in.kernel.deliver({{kind, 60000, 0}});
        to.send(60000);
        for (auto const end = at + 60000; at < end; at += large.back().size()) {
            large.push_back(std::move(receive(in, rx)->loan));
            REQUIRE(is_pattern(large.back(), from + at));
        }
        if (at % 240000 == 0)
            large.erase(large.begin(), large.end() - 2);
    }
    CHECK(rx.stats().host_memory <= 6 << 20);
    kept.clear();
    large.clear();
    for (std::size_t i = 0; i < 100; ++i) {
        auto const offset = to.sent();
        in.kernel.deliver({{kind, 50000, 0}});
        to.send(50000);
        for (std::size_t at = 0; at < 50000;) {
            auto const got = receive(in, rx);
            REQUIRE(is_pattern(got->loan, offset + at));
            at += got->bytes;
        }
    }
    CHECK(rx.stats().host_memory <= 6 << 20);
    rx.close();
    CHECK(in.session.state().total().host_memory == 0);
}

TEST_CASE("one call takes many fragments, but only as many as the loan limit allows")
{
    SECTION("many")
    {
        world in{nic_transport(), {.receive_memory = pages(1024), .loan_limit = pages(512)}};
        in.kernel.set_fragment_size(100);
        sender to{in.wires};
        auto rx = in.flow(to);
        to.send(30000);
        auto const got = receive(in, rx);
        CHECK(got->loan.fragments().size() == 300);
        CHECK(rx.stats().receive_calls == 1);
    }
    SECTION("limited")
    {
        world in{nic_transport(), {.loan_limit = 10000}};
        sender to{in.wires};
        auto rx = in.flow(to);
        to.send(30000);
        auto const got = receive(in, rx);
        CHECK(got->bytes == 10000);
    }
}

TEST_CASE("random mixtures of everything arrive whole")
{
    world in{nic_transport(), {.loan_limit = 64 << 20}};  // a page for each byte, at the worst
    test_session second{(*in.session).transport(), in.kernel, {}, pages(1024), other};
    in.kernel.set_noise(GENERATE(false, true));
    in.kernel.set_packing(GENERATE(false, true));
    sender to{in.wires};
    auto rx = in.flow(to);
    std::mt19937 random{17};
    std::vector<rx_buffer> kept;
    std::size_t received = 0;
    for (int round = 0; round < 200; ++round) {
        auto const size = 1 + random() % 6000;
        static constexpr std::array kinds{way::device, way::linear, way::plain};
        in.kernel.set_fragment_size(1 + random() % 4096);
        in.kernel.deliver({{kinds[random() % 3], size, random() % 2 == 0 ? own : other}});
        if (random() % 5 == 0)
            in.kernel.fail_receive(random() % 2 == 0 ? EINTR : EAGAIN);
        to.send(size);
        while (received < to.sent()) {
            auto const got = receive(in, rx);
            REQUIRE_FALSE(got->code);
            REQUIRE(is_pattern(got->loan, received));
            received += got->bytes;
            kept.push_back(std::move(got->loan));
            if (kept.size() > 20)
                kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(random() % 20));
        }
    }
    CHECK(rx.stats().bytes() == to.sent());
    CHECK(rx.stats().tokens_out == in.kernel.tokens_out());
}

}  // namespace gpurx::test
