// SPDX-License-Identifier: Apache-2.0
//
// The parts of gpurx-perf without I/O: options, protocol and report.
#include <boost/json/parse.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstddef>
#include <span>
#include <vector>

#include "options.hpp"
#include "protocol.hpp"
#include "report.hpp"

namespace gpurx::perf {

namespace {

using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

std::optional<options> parsed(std::vector<char const*> words)
{
    words.insert(words.begin(), "gpurx-perf");
    auto exit_code = -1;
    auto made = parse_command_line(static_cast<int>(words.size()), words.data(), exit_code);
    CHECK((made || exit_code == bad_usage));
    return made;
}

round_result round_of(std::string setting, std::uint64_t bytes, std::chrono::nanoseconds latency)
{
    round_result made{.server = {.setting = std::move(setting), .transport = "copy"}, .received = {}, .latency = {}};
    made.received = {
        .bytes = bytes, .nanoseconds = 2'000'000'000, .process_cpu_ns = 500'000'000, .machine_cpu_ns = 1'000'000'000};
    made.latency.add(latency);
    return made;
}

}  // namespace

TEST_CASE("perf: messages are decoded as they were encoded")
{
    request const wanted{.flow = 3, .flows = 4, .message_size = 4096, .warm_up_ms = 0, .measured_ms = 7};
    CHECK(decode_request(encode(wanted)) == wanted);
    greeting const hello{.setting = "--loan", .transport = "devmem"};
    CHECK(decode_greeting(encode(hello)) == hello);
    result const made{1, 2, 3, 4, 5, ~std::uint64_t{0}};
    CHECK(decode_result(encode(made)) == made);
    CHECK(decode_acknowledged(encode(end_of_load)) == end_of_load);
}

TEST_CASE("perf: texts of the other side are cut off and can be printed")
{
    auto const hello =
        decode_greeting(encode(greeting{.setting = std::string(500, 'x') + "y", .transport = "\033[2J\n"}));
    CHECK(hello.setting == std::string(127, 'x'));
    CHECK(hello.transport == "?[2J?");
}

TEST_CASE("perf: a request that cannot be is refused")
{
    request const good{.flow = 0, .flows = 1, .message_size = 8, .warm_up_ms = 0, .measured_ms = 1};
    REQUIRE(decode_request(encode(good)));
    auto bad = good;
    SECTION("no flows")
    {
        bad.flows = 0;
    }
    SECTION("too many")
    {
        bad.flows = most_flows + 1;
    }
    SECTION("a number that is none of them")
    {
        bad.flow = 1;
    }
    SECTION("no message")
    {
        bad.message_size = 0;
    }
    SECTION("a part of a word")
    {
        bad.message_size = 12;
    }
    SECTION("a message too large")
    {
        bad.message_size = largest_message + 8;
    }
    SECTION("no time")
    {
        bad.measured_ms = 0;
    }
    CHECK_FALSE(decode_request(encode(bad)));
}

TEST_CASE("perf: a connection of something else is no request")
{
    CHECK_FALSE(decode_request(std::array<std::byte, request_size>{}));
}

TEST_CASE("perf: the pattern is known in pieces of any size")
{
    std::vector<std::byte> bytes(4096);
    fill_pattern(bytes, 5, 1 << 20);
    std::vector<std::byte> before(1 << 20);
    fill_pattern(before, 5, 0);
    auto const step = GENERATE(1U, 3U, 8U, 13U, 4096U);
    pattern_check check{5};
    check.take(before);
    for (std::size_t at = 0; at < bytes.size(); at += step)
        check.take(std::span{bytes}.subspan(at, std::min<std::size_t>(step, bytes.size() - at)));
    CHECK(check.wrong_words() == 0);
    CHECK(check.bytes() == before.size() + bytes.size());
}

TEST_CASE("perf: bytes that are wrong, lost or another flow's are seen")
{
    std::vector<std::byte> bytes(800);
    fill_pattern(bytes, 1, 0);
    pattern_check check{1};
    SECTION("one is wrong")
    {
        bytes[GENERATE(0U, 7U, 400U, 799U)] ^= std::byte{1};
        check.take(bytes);
        CHECK(check.wrong_words() == 1);
    }
    SECTION("some are lost")
    {
        check.take(std::span{bytes}.subspan(8));
        CHECK(check.wrong_words() == 99);
    }
    SECTION("they are another's")
    {
        pattern_check other{2};
        other.take(bytes);
        CHECK(other.wrong_words() == 100);
    }
}

TEST_CASE("perf: percentiles are exact to 1.6 percent, and the largest is itself")
{
    histogram of;
    CHECK(of.percentile(50) == 0ns);
    for (auto i = 1; i <= 10'000; ++i)
        of.add(i * 1us);
    CHECK(of.count() == 10'000);
    for (auto const percent : {1.0, 50.0, 90.0, 99.0, 99.9})
        CHECK_THAT(static_cast<double>(of.percentile(percent).count()), WithinRel(percent * 100'000, 0.016));
    CHECK(of.percentile(100) == 10'000us);
    histogram more;
    more.add(-1ns);
    more.add(of);
    CHECK(more.count() == 10'001);
    CHECK(more.percentile(0) == 0ns);
    CHECK(more.percentile(100) == 10'000us);
}

TEST_CASE("perf: compared settings differ in their text")
{
    auto const made = parsed({"server", "--transport", "copy", "--memory", "8MiB", "--compare",
                              "--loan --transport devmem", "--compare", "--max-flows 3 --allow-zcrx", "--rounds", "6"});
    REQUIRE(made);
    auto const& server = std::get<server_options>(*made);
    REQUIRE(server.settings.size() == 3);
    CHECK(server.rounds == 6);
    CHECK(server.settings[0].name == "--read --transport copy");
    CHECK(server.settings[1].name == "--loan --transport devmem");
    CHECK((server.settings[1].loans && !server.settings[0].loans && !server.settings[2].loans));
    CHECK(server.settings[1].session.transport == transport::devmem);
    CHECK(server.settings[2].session.transport == transport::copy);
    CHECK(server.settings[2].session.allow_zcrx);
    CHECK_FALSE(server.settings[0].session.allow_zcrx);
    CHECK(server.settings[2].session.max_flows == 3);
    CHECK(server.settings[2].memory == 8 << 20);
}

TEST_CASE("perf: the client's server has a port of its own or the usual one")
{
    auto const of = [](char const* where) {
        return std::get<client_options>(parsed({"client", where, "--message", "1MiB"}).value());
    };
    CHECK(of("host").port == "5210");
    CHECK((of("host:9").host == "host" && of("host:9").port == "9"));
    CHECK(of("host").message_size == 1 << 20);
}

TEST_CASE("perf: a command line that is wrong is refused")
{
    auto const words = GENERATE(std::vector<char const*>{}, std::vector<char const*>{"client"},
                                std::vector<char const*>{"client", "host:70000"},
                                std::vector<char const*>{"client", "host", "--message", "12"},
                                std::vector<char const*>{"client", "host", "--flows", "65"},
                                std::vector<char const*>{"server", "--transport", "pigeon"},
                                std::vector<char const*>{"server", "--compare", "--rounds 3"});
    CHECK_FALSE(parsed(words));
}

TEST_CASE("perf: rounds add up to medians for each setting")
{
    constexpr std::uint64_t gib = 1 << 30;
    std::vector const rounds{round_of("a", 2 * gib, 10us), round_of("b", 8 * gib, 1us), round_of("a", 6 * gib, 30us),
                             round_of("b", 8 * gib, 1us), round_of("a", 4 * gib, 20us)};
    auto const text = json({.host = {}, .port = {}, .json = {}}, rounds);
    auto const all = boost::json::parse(text).as_object();
    auto const& settings = all.at("settings").as_array();
    REQUIRE(settings.size() == 2);
    CHECK(all.at("rounds").as_array().size() == 5);
    auto const& a = settings[0].as_object();
    CHECK(a.at("setting").as_string() == "a");
    CHECK(a.at("gib_per_second").as_double() == 2);
    CHECK(a.at("process_cpu_per_gib").as_double() == 0.125);
    CHECK(a.at("latency_us").as_object().at("max").as_double() == 30);
    CHECK(a.at("latency_us").as_object().at("count").to_number<int>() == 3);
    CHECK_THAT(table(rounds), ContainsSubstring("2.000  1.000..3.000"));
}

TEST_CASE("perf: a round in which nothing came is no division by zero")
{
    CHECK(gib_per_second({}) == 0);
    CHECK(cpu_per_gib(5, {}) == 0);
    CHECK_THAT(table(std::vector<round_result>(1)), ContainsSubstring("0.000"));
}

}  // namespace gpurx::perf
