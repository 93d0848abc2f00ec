// SPDX-License-Identifier: Apache-2.0
//
// What gpurxd and its clients say is read as it was written; what is not written so is no message.
#include "lease/daemon_protocol.hpp"

#include <boost/asio/error.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

using namespace gpurx;
using namespace gpurx::detail;
using Catch::Matchers::ContainsSubstring;

namespace {

using bytes = std::vector<std::byte>;

asio::ip::tcp::endpoint address_of(char const* address, std::uint16_t port)
{
    return {asio::ip::make_address(address), port};
}

std::vector<daemon_request> requests()
{
    return {open_request{"eth1", 2, 65536},
            open_request{"fifteen-letters", 1, 0},
            open_request{"eth1", 1, 0, std::uint64_t{8} << 30},
            steer_flow_request{address_of("10.0.0.1", 5000), address_of("10.0.0.2", 65535), false},
            steer_flow_request{address_of("fe80::1%7", 1), address_of("fd77::2", 2), true},
            steer_port_request{address_of("::", 80), true},
            steer_port_request{address_of("10.0.0.1", 80), false},
            unsteer_request{0xffffffff}};
}

std::vector<daemon_reply> replies()
{
    return {opened_reply{7, 4096, true, true, {256, 1500}, {3}},
            opened_reply{8, 65536, false, false, {std::nullopt, 9000}, std::vector<unsigned>(daemon_queue_limit, 9)},
            steered_reply{4},
            unsteered_reply{},
            refused_reply{errc::queue_busy, {"bind-rx", "eth1 queue 3", "in use", "ask later"}},
            refused_reply{error_code{EACCES, boost::system::system_category()}, {}},
            notice_reply{"steered by port alone"}};
}

std::string damage_of(bytes const& message)
{
    auto const parsed = parse_daemon_request(message);
    return std::holds_alternative<message_damage>(parsed) ? std::get<message_damage>(parsed).what : "none";
}

}  // namespace

TEST_CASE("requests and replies are read as they were written")
{
    for (auto const& request : requests()) {
        auto const message = encode(request);
        CHECK(message.size() <= daemon_message_limit);
        auto const parsed = parse_daemon_request(message);
        REQUIRE(std::holds_alternative<daemon_request>(parsed));
        CHECK(std::get<daemon_request>(parsed) == request);
        CHECK(std::holds_alternative<message_damage>(parse_daemon_reply(message)));
    }
    for (auto const& reply : replies()) {
        auto const message = encode(reply);
        CHECK(message.size() <= daemon_message_limit);
        auto const parsed = parse_daemon_reply(message);
        REQUIRE(std::holds_alternative<daemon_reply>(parsed));
        CHECK(std::get<daemon_reply>(parsed) == reply);
        CHECK(std::holds_alternative<message_damage>(parse_daemon_request(message)));
    }
}

TEST_CASE("a message that is cut short or goes on is none")
{
    for (auto const& request : requests()) {
        auto const whole = encode(request);
        for (std::size_t size = 0; size < whole.size(); ++size)
            CHECK(damage_of({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}) != "none");
        auto longer = whole;
        longer.push_back(std::byte{0});
        CHECK(damage_of(longer) == "it is too long");
    }
    CHECK(damage_of(bytes(daemon_message_limit + 1)) == "it is too long");
}

TEST_CASE("another version of the protocol is reported, whatever follows it")
{
    bytes message{std::byte{1}, std::byte{0}, std::byte{77}};
    auto const parsed = parse_daemon_request(message);
    REQUIRE(std::holds_alternative<message_damage>(parsed));
    CHECK(std::get<message_damage>(parsed).other_version);
    CHECK_THAT(damage_of(message), ContainsSubstring("version 1 of the protocol, and this is version 2"));
}

TEST_CASE("a request without a meaning is damage")
{
    CHECK_THAT(damage_of(encode(open_request{"", 1, 0})), ContainsSubstring("name"));
    CHECK_THAT(damage_of(encode(open_request{"sixteen-letters-", 1, 0})), ContainsSubstring("name"));
    CHECK_THAT(damage_of(encode(open_request{std::string{"eth\0x", 5}, 1, 0})), ContainsSubstring("name"));
    auto flag = encode(steer_port_request{address_of("10.0.0.1", 80), true});
    flag.back() = std::byte{2};
    CHECK_THAT(damage_of(flag), ContainsSubstring("flag"));
    auto family = encode(steer_port_request{address_of("10.0.0.1", 80), true});
    family[4] = std::byte{5};
    CHECK_THAT(damage_of(family), ContainsSubstring("neither IPv4 nor IPv6"));
    auto kind = encode(unsteer_request{1});
    kind[2] = std::byte{9};
    CHECK_THAT(damage_of(kind), ContainsSubstring("kind 9"));
}

TEST_CASE("long texts are cut off, and errors of other categories keep their text")
{
    std::string const words(5000, 'w');
    auto const parsed = parse_daemon_reply(encode(refused_reply{errc::queue_busy, {words, words, words, words}}));
    REQUIRE(std::holds_alternative<daemon_reply>(parsed));
    CHECK(std::get<refused_reply>(std::get<daemon_reply>(parsed)).why.advice == words.substr(0, 900));

    error_code const theirs = asio::error::host_not_found;
    auto const other = parse_daemon_reply(encode(refused_reply{theirs, {}}));
    auto const& refused = std::get<refused_reply>(std::get<daemon_reply>(other));
    CHECK(refused.code == error_code{EIO, boost::system::system_category()});
    CHECK(refused.why.kernel_message == theirs.message());
}
