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

void line(std::FILE* to, std::string_view name, std::string const& value)
{
    fmt::print(to, "{:<22}{}\n", name, value);
}

void print_tensors(std::FILE* to, report const& report)
{
    for (std::size_t i = 0; i < report.tensors.size(); ++i) {
        auto const& tensor = report.tensors[i];
        fmt::print(to, "{:#016x}  {:<8} {:<20} {}\n", report.block + report.offsets[i], name_of(tensor.type),
                   fmt::format("[{}]", fmt::join(tensor.shape, ", ")), gpurx::ingest::printable_text(tensor.name));
    }
}

void print_mirrors(std::FILE* to, report const& report)
{
    if (report.mirrors.size() == 1)
        return;
    for (auto const& each : report.mirrors)
        line(to, "  from",
             fmt::format("{}: {} bytes{}{}", each.url, each.bytes_placed,
                         each.failure.empty() ? "" : "; left out: ", each.failure));
}

boost::json::array json_of_mirrors(report const& report)
{
    boost::json::array mirrors;
    for (auto const& each : report.mirrors)
        mirrors.push_back({{"url", each.url}, {"bytes", each.bytes_placed}, {"left_out", each.failure}});
    return mirrors;
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

void print_table(report const& report, std::FILE* to)
{
    fmt::print(to, "{}\n", report.explanation);
    print_tensors(to, report);
    line(to, "object", report.url);
    line(to, "size", fmt::format("{} ({})", report.size, size_text(static_cast<double>(report.size))));
    line(to, "time", fmt::format("{:.2f} s, {}/s", report.time.count(), size_text(rate(report))));
    line(to, "CPU time", fmt::format("{:.2f} s, {:.2f} s per GiB", report.cpu_time.count(), cpu_per_gibibyte(report)));
    line(to, "in device memory", fmt::format("{}", report.stats.device_bytes + report.stats.resteered_bytes));
    line(to, "not split by NIC", fmt::format("{}", report.stats.linear_bytes));
    line(to, "in host memory", fmt::format("{}", report.stats.host_bytes));
    line(to, "requests",
         fmt::format("{} on {} connections, {} retries", report.http.requests, report.http.connections,
                     report.http.retries));
    print_mirrors(to, report);
    if (report.crc32c)
        line(to, "CRC32C",
             fmt::format("{:08x}{}", *report.crc32c, report.crc32c_announced ? ", as the server announced" : ""));
    if (!report.sha256.empty())
        line(to, "SHA-256", report.sha256);
    if (!report.as_expected())
        line(to, "  expected", report.expected_sha256);
}

void print_json(report const& report, std::FILE* to)
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
    if (report.mirrors.size() > 1)
        object["mirrors"] = json_of_mirrors(report);
    if (!report.tensors.empty())
        object["tensors"] = json_of_tensors(report);
    fmt::print(to, "{}\n", boost::json::serialize(object));
}
