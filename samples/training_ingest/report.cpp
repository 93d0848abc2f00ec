// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "progress.hpp"

namespace {

double rate(report const& report)
{
    return report.time.count() > 0 ? static_cast<double>(report.stream.payload_bytes) / report.time.count() : 0;
}

void line(std::string_view name, std::string const& value)
{
    fmt::print("{:<22}{}\n", name, value);
}

boost::json::array json_of_errors(report const& report)
{
    boost::json::array errors;
    for (auto const& each : report.errors) {
        boost::json::object error{{"text", describe(each.code, each.why)}};
        if (each.source)
            error["source"] = *each.source;
        errors.push_back(std::move(error));
    }
    return errors;
}

boost::json::object json_of_hashes(report const& report)
{
    boost::json::object hashes;
    for (auto const& [name, hash] : report.sha256)
        hashes[name] = hash;
    return hashes;
}

}  // namespace

void print_table(report const& report)
{
    auto const& stream = report.stream;
    fmt::print("{}\n", report.explanation);
    line("batches", fmt::format("{}, {} rows", stream.batches, report.rows));
    line("frames", fmt::format("{}, and {} that came twice", stream.frames, stream.duplicates));
    line("connections", fmt::format("{}", stream.connections));
    line("bytes", fmt::format("{} ({})", stream.payload_bytes, size_text(static_cast<double>(stream.payload_bytes))));
    line("time", fmt::format("{:.2f} s, {}/s", report.time.count(), size_text(rate(report))));
    line("  waiting for batches", fmt::format("{:.2f} s", report.waiting.count()));
    line("memory, most", size_text(static_cast<double>(stream.memory_high_water)));
    for (auto const& [name, hash] : report.sha256)
        line("SHA-256 of " + name, hash);
}

void print_json(report const& report)
{
    auto const& stream = report.stream;
    auto const& session = report.session;
    boost::json::object const object{
        {"transport", gpurx::to_string(report.transport)},
        {"explanation", report.explanation},
        {"batches", stream.batches},
        {"rows", report.rows},
        {"frames", stream.frames},
        {"duplicates", stream.duplicates},
        {"connections", stream.connections},
        {"bytes", stream.payload_bytes},
        {"seconds", report.time.count()},
        {"seconds_waiting", report.waiting.count()},
        {"bytes_per_second", rate(report)},
        {"memory_high_water", stream.memory_high_water},
        {"received",
         {{"device", session.device_bytes},
          {"resteered", session.resteered_bytes},
          {"linear", session.linear_bytes},
          {"host", session.host_bytes}}},
        {"sha256", json_of_hashes(report)},
        {"errors", json_of_errors(report)},
    };
    fmt::print("{}\n", boost::json::serialize(object));
}
