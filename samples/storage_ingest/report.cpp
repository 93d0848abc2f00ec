// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/json.hpp>

#include "progress.hpp"

namespace {

constexpr double gibibyte = 1024.0 * 1024 * 1024;

double rate(report const& report)
{
    return report.time.count() > 0 ? static_cast<double>(report.size) / report.time.count() : 0;
}

double cpu_per_gibibyte(report const& report)
{
    return report.size == 0 ? 0 : report.cpu_time.count() / (static_cast<double>(report.size) / gibibyte);
}

void line(std::string_view name, std::string const& value)
{
    fmt::print("{:<22}{}\n", name, value);
}

void print_tensors(report const& report)
{
    for (std::size_t i = 0; i < report.tensors.size(); ++i) {
        auto const& tensor = report.tensors[i];
        fmt::print("{:#016x}  {:<8} {:<20} {}\n", report.block + report.offsets[i], name_of(tensor.type),
                   fmt::format("[{}]", fmt::join(tensor.shape, ", ")), tensor.name);
    }
}

boost::json::array json_of_tensors(report const& report)
{
    boost::json::array tensors;
    for (std::size_t i = 0; i < report.tensors.size(); ++i) {
        auto const& tensor = report.tensors[i];
        tensors.push_back({{"name", tensor.name},
                           {"dtype", name_of(tensor.type)},
                           {"shape", boost::json::array(tensor.shape.begin(), tensor.shape.end())},
                           {"bytes", tensor.size},
                           {"offset", report.offsets[i]},
                           {"address", report.block + report.offsets[i]}});
    }
    return tensors;
}

}  // namespace

void print_table(report const& report)
{
    fmt::print("{}\n", report.explanation);
    print_tensors(report);
    line("object", report.url);
    line("size", fmt::format("{} ({})", report.size, size_text(static_cast<double>(report.size))));
    line("time", fmt::format("{:.2f} s, {}/s", report.time.count(), size_text(rate(report))));
    line("CPU time", fmt::format("{:.2f} s, {:.2f} s per GiB", report.cpu_time.count(), cpu_per_gibibyte(report)));
    line("in device memory", fmt::format("{}", report.stats.device_bytes + report.stats.resteered_bytes));
    line("not split by NIC", fmt::format("{}", report.stats.linear_bytes));
    line("in host memory", fmt::format("{}", report.stats.host_bytes));
    line("requests", fmt::format("{} on {} connections, {} retries", report.http.requests, report.http.connections,
                                 report.http.retries));
    if (report.crc32c)
        line("CRC32C",
             fmt::format("{:08x}{}", *report.crc32c, report.crc32c_announced ? ", as the server announced" : ""));
    if (!report.sha256.empty())
        line("SHA-256", report.sha256);
    if (!report.as_expected())
        line("  expected", report.expected_sha256);
}

void print_json(report const& report)
{
    boost::json::object object{
        {"transport", gpurx::to_string(report.transport)},
        {"explanation", report.explanation},
        {"url", report.url},
        {"etag", report.etag},
        {"size", report.size},
        {"seconds", report.time.count()},
        {"cpu_seconds", report.cpu_time.count()},
        {"bytes",
         {{"device", report.stats.device_bytes + report.stats.resteered_bytes},
          {"linear", report.stats.linear_bytes},
          {"host", report.stats.host_bytes}}},
        {"requests", report.http.requests},
        {"connections", report.http.connections},
        {"retries", report.http.retries},
        {"redirects", report.http.redirects},
        {"release_shortfalls", report.stats.release_shortfalls},
        {"as_expected", report.as_expected()},
    };
    if (report.crc32c) {
        object["crc32c"] = fmt::format("{:08x}", *report.crc32c);
        object["crc32c_announced"] = report.crc32c_announced;
    }
    if (!report.sha256.empty())
        object["sha256"] = report.sha256;
    if (!report.tensors.empty())
        object["tensors"] = json_of_tensors(report);
    fmt::print("{}\n", boost::json::serialize(object));
}
