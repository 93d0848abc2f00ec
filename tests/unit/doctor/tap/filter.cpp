// SPDX-License-Identifier: Apache-2.0
//
// The kernel runs the programs: on a pair of Unix sockets, to which frames are messages.
#include "tap/filter.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <stdexcept>

#include "base/syscalls.hpp"
#include "frames.hpp"

using namespace gpurx::doctor::tap;
namespace ip = boost::asio::ip;
namespace detail = gpurx::detail;

namespace {

// How much of a frame goes through.
class filtered_pair {
  public:
    explicit filtered_pair(selections const& chosen)
    {
        std::array<int, 2> both{};
        REQUIRE(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both.data()) == 0);
        in_.reset(both[0]);
        out_.reset(both[1]);
        auto made = make_filter(chosen);
        sock_fprog const all{static_cast<unsigned short>(made.program.size()), made.program.data()};
        REQUIRE(::setsockopt(out_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof all) == 0);
    }

    std::size_t operator()(made_frame const& frame) const
    {
        auto const bytes = frame.bytes();
        REQUIRE(::send(in_.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
        std::array<std::byte, 2048> landing{};
        auto const count = ::recv(out_.get(), landing.data(), landing.size(), 0);
        return count < 0 ? 0 : static_cast<std::size_t>(count);
    }

  private:
    gpurx::detail::unique_fd in_;
    gpurx::detail::unique_fd out_;
};

made_frame back(made_frame frame)
{
    std::swap(frame.source, frame.destination);
    std::swap(frame.source_port, frame.destination_port);
    return frame;
}

made_frame const v6{.source = "fd00::2", .destination = "fd00::1"};

}  // namespace

TEST_CASE("a flow is named by its ends", "[tap]")
{
    CHECK(of_flow("10.0.0.1:5000,10.0.0.2:*") ==
          selections{{false, ip::make_address("10.0.0.1"), 5000, ip::make_address("10.0.0.2"), 0}});
    CHECK(of_flow("*:5000,[fd00::2]:4000") == selections{{true, {}, 5000, ip::make_address("fd00::2"), 4000}});
    CHECK(of_flow("*:5000,*:*") == selections{{false, {}, 5000, {}, 0}, {true, {}, 5000, {}, 0}});
    for (auto const* const wrong :
         {"", "10.0.0.1:5000", "10.0.0.1,10.0.0.2", "10.0.0.1:0,*:*", "10.0.0.1:65536,*:*", "10.0.0.1:5x,*:*",
          "10.0.0:5000,*:*", "10.0.0.1:1,[fd00::1]:2", "[fd00::1],*:*", "[fe80::1%lo]:1,*:*", ":1,*:*"}) {
        CAPTURE(wrong);
        CHECK_THROWS_AS(of_flow(wrong), std::invalid_argument);
    }
}

TEST_CASE("the flows of sessions are those of their rules", "[tap]")
{
    detail::flow_rule listener;
    listener.match = {.v6 = false, .local = ip::make_address("10.0.0.1"), .local_port = 5000, .remote = {}};
    detail::flow_rule flow;
    flow.match = {.v6 = true,
                  .local = ip::make_address("fd00::1"),
                  .local_port = 40000,
                  .remote = ip::tcp::endpoint{ip::make_address("fd00::2"), 9000}};
    detail::journal_owner one;
    one.rules.push_back({7, listener});
    detail::journal_owner other;
    other.rules.push_back({std::nullopt, flow});
    other.rules.push_back({7, listener});
    CHECK(of_sessions({one, other}) ==
          selections{{false, ip::make_address("10.0.0.1"), 5000, {}, 0},
                     {true, ip::make_address("fd00::1"), 40000, ip::make_address("fd00::2"), 9000}});
    CHECK(of_sessions({}).empty());
}

TEST_CASE("widened they have a port only", "[tap]")
{
    CHECK(widened(of_flow("10.0.0.1:5000,10.0.0.2:4000")) == selections{{false, {}, 5000, {}, 0}});
    CHECK(widened(of_flow("10.0.0.1:*,10.0.0.2:4000")) == selections{{false, {}, 0, {}, 4000}});
}

TEST_CASE("the headers go through, and one byte of the payload", "[tap]")
{
    filtered_pair const through{of_port(5000)};
    for (auto frame : {made_frame{.payload = 1000}, made_frame{.ip_options = {1, 1, 1, 0}, .payload = 1000},
                       made_frame{.tcp_options = std::vector<std::uint8_t>(40, 1), .payload = 1000},
                       made_frame{.source = v6.source, .destination = v6.destination, .payload = 1000},
                       made_frame{.source = v6.source,
                       .destination = v6.destination,
                       .tcp_options = std::vector<std::uint8_t>(12, 1),
                       .payload = 1000}}) {
        CAPTURE(frame.source, frame.ip_options.size(), frame.tcp_options.size());
        CHECK(through(frame) == frame.headers() + 1);
        CHECK(through(back(frame)) == frame.headers() + 1);
        // Headers alone, as of a packet whose payload the kernel cannot read.
        frame.payload = 0;
        CHECK(through(frame) == frame.headers());
    }
}

TEST_CASE("a filter lets nothing through but chosen TCP", "[tap]")
{
    filtered_pair const through{of_port(5000)};
    CHECK(through({.destination_port = 5001}) == 0);
    CHECK(through({.source_port = 5000, .destination_port = 5001}) > 0);
    CHECK(through({.protocol = 17}) == 0);
    CHECK(through({.fragment = 0x0010}) == 0);
    CHECK(through({.fragment = 0x4000}) > 0);  // must not be fragmented
    CHECK(through({.ether_type = ETH_P_ARP}) == 0);
    auto other = v6;
    other.protocol = 17;
    CHECK(through(other) == 0);
}

TEST_CASE("of a flow both directions go through, and no other flow", "[tap]")
{
    filtered_pair const through{of_flow("10.0.0.1:5000,10.0.0.2:4000")};
    made_frame const frame;
    CHECK(through(frame) > 0);
    CHECK(through(back(frame)) > 0);
    CHECK(through({.source = "10.0.0.3"}) == 0);
    CHECK(through({.source_port = 4001}) == 0);
    CHECK(through({.destination = "10.0.0.9"}) == 0);
    CHECK(through({.destination_port = 5001}) == 0);
    CHECK(through(v6) == 0);
    // The ends the other way round are another flow.
    CHECK(through({.source = "10.0.0.1", .source_port = 4000, .destination = "10.0.0.2", .destination_port = 5000}) ==
          0);
}

TEST_CASE("each word of an IPv6 address counts", "[tap]")
{
    filtered_pair const through{of_flow("[fd00:1:2:3:4:5:6:7]:5000,*:*")};
    auto frame = v6;
    frame.destination = "fd00:1:2:3:4:5:6:7";
    CHECK(through(frame) > 0);
    for (auto const* const other :
         {"fd01:1:2:3:4:5:6:7", "fd00:1:9:3:4:5:6:7", "fd00:1:2:3:4:9:6:7", "fd00:1:2:3:4:5:6:9"}) {
        frame.destination = other;
        CAPTURE(other);
        CHECK(through(frame) == 0);
    }
}

TEST_CASE("a hundred flows, each of them, and none beside them", "[tap]")
{
    selections chosen;
    for (int i = 0; i < 100; ++i)
        chosen.merge(of_flow(fmt::format("10.0.0.1:5000,10.0.1.{}:{}", i, 4000 + i)));
    CHECK_FALSE(make_filter(chosen).widened);
    filtered_pair const through{chosen};
    for (int i = 0; i < 100; ++i) {
        made_frame const frame{.source = fmt::format("10.0.1.{}", i),
                               .source_port = static_cast<std::uint16_t>(4000 + i)};
        CAPTURE(i);
        CHECK(through(frame) > 0);
        CHECK(through(back(frame)) > 0);
    }
    CHECK(through({.source = "10.0.1.5", .source_port = 4006}) == 0);
}

TEST_CASE("more flows than fit are taken by their port", "[tap]")
{
    selections chosen;
    for (int i = 0; i < 2000; ++i)
        chosen.merge(of_flow(fmt::format("10.0.0.1:5000,10.0.{}.{}:*", i / 200, i % 200)));
    auto const made = make_filter(chosen);
    CHECK(made.widened);
    CHECK(made.program.size() < 100);
    filtered_pair const through{chosen};
    CHECK(through({.source = "10.0.9.199"}) > 0);
    CHECK(through({.destination_port = 5001}) == 0);
    for (int i = 0; i < 2000; ++i)
        chosen.merge(of_port(static_cast<std::uint16_t>(10000 + i)));
    CHECK_THROWS_AS(make_filter(chosen), std::length_error);
}
