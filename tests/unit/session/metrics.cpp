// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <gpurx/metrics.hpp>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "session/metrics_text.hpp"

using Catch::Matchers::ContainsSubstring;

namespace gpurx::detail {

namespace {

// Every counter has another value.
stats distinct_counters()
{
    return {.device_bytes = 1001,
            .resteered_bytes = 1002,
            .linear_bytes = 1003,
            .host_bytes = 1004,
            .fragments = 1005,
            .tokens_out = 1006,
            .tokens_high_water = 1007,
            .xarray_tokens = 1008,
            .receive_calls = 1009,
            .release_calls = 1010,
            .waits = 1011,
            .loan_waits = 1012,
            .release_shortfalls = 1013,
            .release_failures = 1014,
            .starved = 1015,
            .host_memory = 1016};
}

pool_stats distinct_figures()
{
    pool_stats pool;
    pool.page_size = 1019;
    pool.free = 1020;
    pool.in_ring = 1021;
    pool.in_queues = 1031;
    pool.on_loan = 1022;
    pool.parked = 1023;
    pool.in_reads = 1024;
    pool.ring_demand = 1025;
    pool.high_water = 1026;
    pool.dry_time = std::chrono::seconds{1027};
    pool.allocation_failures = 1028;
    pool.overruns = 1029;
    pool.drops = 1030;
    return pool;
}

session_sample sample_named(std::string name)
{
    return {.name = std::move(name),
            .interface = "eth0",
            .transport = "devmem",
            .tokens = "array",
            .obstacle = "none",
            .zcrx_obstacle = "better_in_use",
            .memory_bytes = 1017,
            .queues = 1018,
            .counted = distinct_counters(),
            .pool = distinct_figures()};
}

std::vector<std::string> lines_of(std::string const& text)
{
    std::istringstream in{text};
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);)
        lines.push_back(line);
    return lines;
}

std::string content_of(std::filesystem::path const& file)
{
    std::ifstream in{file};
    return {std::istreambuf_iterator<char>{in}, {}};
}

struct scratch_directory {
    scratch_directory()
    {
        std::string name = (std::filesystem::temp_directory_path() / "gpurx-metrics-XXXXXX").string();
        path = ::mkdtemp(name.data());
    }
    scratch_directory(scratch_directory const&) = delete;
    scratch_directory& operator=(scratch_directory const&) = delete;
    ~scratch_directory() { std::filesystem::remove_all(path); }
    std::filesystem::path path;
};

}  // namespace

TEST_CASE("metrics have every counter of a session, once")
{
    auto const sample = sample_named("loader");
    auto const text = format_metrics("1.2.3", {&sample, 1});
    auto const lines = lines_of(text);
    CHECK(text.ends_with('\n'));
    CHECK(std::ranges::count(lines, "gpurx_build_info{version=\"1.2.3\"} 1") == 1);
    CHECK(std::ranges::count(lines,
                             "gpurx_session_info{session=\"loader\",interface=\"eth0\",transport=\"devmem\","
                             "tokens=\"array\",obstacle=\"none\",zcrx_obstacle=\"better_in_use\"} 1") == 1);
    CHECK(std::ranges::count(lines, "gpurx_received_bytes_total{session=\"loader\",way=\"linear\"} 1003") == 1);
    CHECK(std::ranges::count(lines, "gpurx_waits_total{session=\"loader\",reason=\"loans\"} 1012") == 1);
    CHECK(std::ranges::count(lines, "gpurx_tokens_out{session=\"loader\"} 1006") == 1);
    CHECK(std::ranges::count(lines, "gpurx_pool_pages{session=\"loader\",place=\"ring\"} 1021") == 1);
    CHECK(std::ranges::count(lines, "gpurx_pool_pages{session=\"loader\",place=\"queue\"} 1031") == 1);
    for (unsigned value = 1001; value <= 1031; ++value)
        CHECK(std::ranges::count_if(
                  lines, [&](auto const& line) { return line.ends_with(" " + std::to_string(value)); }) == 1);
}

TEST_CASE("a metric is explained once, and its lines stand together")
{
    std::vector<session_sample> const samples{sample_named("a"), sample_named("b")};
    std::set<std::string> seen;
    std::string current;
    for (auto const& line : lines_of(format_metrics("1", samples))) {
        if (line.starts_with("# HELP ")) {
            current = line.substr(7, line.find(' ', 7) - 7);
            CHECK(seen.insert(current).second);
            CHECK(line.size() > 7 + current.size() + 10);
        } else if (line.starts_with("# TYPE ")) {
            CHECK(line == "# TYPE " + current + (current.ends_with("_total") ? " counter" : " gauge"));
        } else {
            CHECK(line.substr(0, line.find('{')) == current);
        }
    }
    CHECK(seen.size() > 10);
}

TEST_CASE("a label's value may be anything")
{
    auto const sample = sample_named("a \"b\" \\ c\nd");
    CHECK_THAT(format_metrics("1", {&sample, 1}), ContainsSubstring(R"(gpurx_queues{session="a \"b\" \\ c\nd"} 1018)"
                                                                    "\n"));
}

TEST_CASE("a metric without a count has no line")
{
    auto sample = sample_named("a");
    sample.pool->overruns.reset();
    CHECK(format_metrics("1", {&sample, 1}).find("overruns") == std::string::npos);
    sample.pool.reset();
    CHECK(format_metrics("1", {&sample, 1}).find("pool") == std::string::npos);
}

TEST_CASE("without a session there is the build")
{
    CHECK(lines_of(format_metrics("1", {})).size() == 3);
}

TEST_CASE("metrics of sessions are written to a file, whole")
{
    scratch_directory const in;
    auto const file = in.path / "gpurx.prom";
    rx_session const one{{.transport = transport::copy}, device_memory::on_host(2 << 20)};
    std::array const sessions{named_session{"one", one}};
    write_metrics(file, sessions);
    CHECK(content_of(file) == metrics_text(sessions));
    CHECK_THAT(content_of(file), ContainsSubstring("gpurx_memory_bytes{session=\"one\"} 2097152\n"));
    CHECK_THAT(content_of(file), ContainsSubstring("transport=\"copy\",tokens=\"none\""));
    write_metrics(file, {});
    CHECK(content_of(file) == metrics_text(std::span<named_session const>{}));
    CHECK(std::distance(std::filesystem::directory_iterator{in.path}, {}) == 1);
}

TEST_CASE("an error of writing metrics has the path, and leaves no file")
{
    scratch_directory const in;
    error_code code;
    diagnostics why;
    write_metrics(in.path / "nowhere" / "x.prom", {}, code, why);
    CHECK(code == boost::system::errc::no_such_file_or_directory);
    CHECK(why.object.ends_with("nowhere/x.prom"));
    std::filesystem::create_directory(in.path / "x.prom");
    CHECK_THROWS_AS(write_metrics(in.path / "x.prom", {}), system_error);
    CHECK(std::distance(std::filesystem::directory_iterator{in.path}, {}) == 1);
}

TEST_CASE("two sessions of one name are refused")
{
    rx_session const one{{.transport = transport::copy}, device_memory::on_host(2 << 20)};
    std::array const sessions{named_session{"one", one}, named_session{"one", one}};
    CHECK_THROWS_AS(metrics_text(sessions), std::invalid_argument);
}

}  // namespace gpurx::detail
