// SPDX-License-Identifier: Apache-2.0
#include "cli.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "progress.hpp"

namespace {

constexpr char footer[] =
    "Send with any TCP program:\n"
    "  receive_file --listen 0.0.0.0:9000 --output copy.bin\n"
    "  socat -u FILE:original.bin TCP:this-host:9000\n"
    "\n"
    "Exit status: 0 received; 1 the transfer failed; 2 the command line is wrong;\n"
    "3 the SHA-256 is not the expected one; 4 the memory could not be allocated, or the session could not be opened;\n"
    "130 interrupted.";

void add_source(CLI::App& app, options& parsed)
{
    auto const endpoint = [&parsed](bool listens) {
        return [&parsed, listens](std::string const& text) {
            parsed.endpoint = endpoint_argument(text);
            parsed.listens = listens;
        };
    };
    auto* const where = app.add_option_group("where", "Sender of the bytes");
    where->add_option_function<std::string>("--listen", endpoint(true), "Accept one connection here (ADDRESS:PORT)");
    where->add_option_function<std::string>("--connect", endpoint(false), "Connect to this HOST:PORT");
    where->require_option(1);
}

void add_consumption(CLI::App& app, options& parsed)
{
    app.add_flag("--loan", parsed.loans,
                 "Borrow the bytes in the memory where the NIC wrote them, instead of reading them into a range");
    app.add_option(
        "--output", parsed.output,
        "Write the bytes to this file, which gets its name when they are complete and correct; -: to standard output");
    add_expected_sha256(app, parsed.expected_sha256, "Fail if the SHA-256 of the bytes differs");
    app.add_flag("--json", parsed.json, "Print the report as JSON, on standard output");
}

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    CLI::App app{"Receives one TCP connection, until it ends, into device memory."};
    app.footer(footer);
    app.set_version_flag("--version", "receive_file " GPURX_VERSION, "Print the version");

    add_source(app, parsed);
    add_session_options(app, parsed.nic);
    add_consumption(app, parsed);

    // One connection: the whole memory is for it.
    parsed.nic.session.max_flows = 1;
    try {
        app.parse(argc, argv);
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : 2;
        return std::nullopt;
    }
    return parsed;
}

// ---- the report ----

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
