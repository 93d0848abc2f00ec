// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "progress.hpp"

namespace {

constexpr double gibibyte = 1024.0 * 1024 * 1024;

double per_gibibyte(std::uint64_t calls, std::uint64_t bytes)
{
    return bytes == 0 ? 0 : static_cast<double>(calls) / (static_cast<double>(bytes) / gibibyte);
}

double per_second(report const& report)
{
    return report.time.count() > 0 ? static_cast<double>(report.stats.bytes()) / report.time.count() : 0;
}

void line(std::FILE* to, std::string_view name, std::string const& value)
{
    fmt::print(to, "{:<22}{}\n", name, value);
}

void bytes_line(std::FILE* to, std::string_view name, std::uint64_t bytes)
{
    line(to, name, fmt::format("{} ({})", bytes, size_text(static_cast<double>(bytes))));
}

}  // namespace

void print_table(report const& report, std::FILE* to)
{
    auto const& stats = report.stats;
    fmt::print(to, "{}\n", report.explanation);
    bytes_line(to, "received", stats.bytes());
    bytes_line(to, "  in device memory", stats.device_bytes + stats.resteered_bytes);
    bytes_line(to, "  not split by NIC", stats.linear_bytes);
    bytes_line(to, "  in host memory", stats.host_bytes);
    line(to, "time", fmt::format("{:.2f} s, {}/s", report.time.count(), size_text(per_second(report))));
    line(to, "fragments", fmt::format("{}", stats.fragments));
    line(to, "receive calls",
         fmt::format("{}, {:.0f} per GiB", stats.receive_calls, per_gibibyte(stats.receive_calls, stats.bytes())));
    line(to, "release calls",
         fmt::format("{}, {:.0f} per GiB", stats.release_calls, per_gibibyte(stats.release_calls, stats.bytes())));
    line(to, "pages on loan, most", fmt::format("{}", stats.tokens_high_water));
    line(to, "SHA-256", report.sha256);
    if (!report.as_expected())
        line(to, "  expected", report.expected_sha256);
}

void print_json(report const& report, std::FILE* to)
{
    auto const& stats = report.stats;
    boost::json::object const object{
        {"transport", gpurx::to_string(report.transport)},
        {"explanation", report.explanation},
        {"bytes",
         {{"total", stats.bytes()},
          {"device", stats.device_bytes},
          {"resteered", stats.resteered_bytes},
          {"linear", stats.linear_bytes},
          {"host", stats.host_bytes}}},
        {"seconds", report.time.count()},
        {"fragments", stats.fragments},
        {"receive_calls", stats.receive_calls},
        {"release_calls", stats.release_calls},
        {"tokens_high_water", stats.tokens_high_water},
        {"xarray_tokens", stats.xarray_tokens},
        {"release_shortfalls", stats.release_shortfalls},
        {"sha256", report.sha256},
        {"as_expected", report.as_expected()},
    };
    fmt::print(to, "{}\n", boost::json::serialize(object));
}
