// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <thread>

#include "sha256_option.hpp"

namespace {

using checksum = gpurx::ingest::http_options::checksum;

constexpr char footer[] =
    "  gpurx-fetch http://storage/model.safetensors --safetensors --memory gpu:0 --interface eth1\n"
    "  gpurx-fetch http://storage/object --output object.bin\n"
    "\n"
    "Exit status: 0 received; 1 the transfer failed; 2 the command line is wrong; 3 the bytes are not the\n"
    "expected ones; 4 the memory or the session could not be had; 130 interrupted.";

checksum parse_checksum(std::string_view name)
{
    if (name == "always")
        return checksum::always;
    return name == "none" ? checksum::none : checksum::automatic;
}

void add_download(CLI::App& app, options& parsed)
{
    app.add_option("url", parsed.url, "http://HOST[:PORT]/PATH; of S3 a public or a pre-signed one")->required();
    app.add_option("--flows", parsed.http.flows, "Connections at a time")
        ->capture_default_str()
        ->check(CLI::Range(1, 1024));
    app.add_option("--chunk-size", parsed.http.chunk_size, "Bytes of one request, as 8MiB")
        ->transform(CLI::AsSizeValue{false})
        ->check(CLI::PositiveNumber)
        ->default_str("8MiB");
    app.add_option("--attempts", parsed.http.attempts, "How often in a row a connection may fail")
        ->capture_default_str()
        ->check(CLI::Range(1, 1000));
    app.add_option_function<unsigned>(
           "--timeout", [&parsed](unsigned seconds) { parsed.http.timeout = std::chrono::seconds{seconds}; },
           "Seconds without a byte after which a connection is replaced")
        ->check(CLI::Range(1, 86400))
        ->default_str("30");
    app.add_option("--threads", parsed.threads, "Threads that receive; each connection is served by one at a time")
        ->capture_default_str()
        ->check(CLI::Range(1, 256));
}

void add_consumption(CLI::App& app, options& parsed)
{
    auto* const listing = app.add_flag("--safetensors", parsed.safetensors,
                                       "The object is a safetensors file: load its tensors, and list them");
    app.add_option(
        "--output", parsed.output,
        "Write the object to this file; with --safetensors the tensors, each at its offset in the JSON report");
    app.add_option_function<std::string>(
           "--crc32c", [&parsed](std::string const& name) { parsed.http.crc32c = parse_checksum(name); },
           "Compute it where the bytes lie: none, always, or automatic: if the server announces one, to compare")
        ->check(CLI::IsMember{{"none", "automatic", "always"}}.description(""))
        ->option_text("WHEN");
    app.add_flag("--sha256", parsed.sha256, "Compute the SHA-256, on the host")->excludes(listing);
    add_expected_sha256(app, parsed.expected_sha256, "Fail unless this is the object's SHA-256")->excludes(listing);
    app.add_flag("--json", parsed.json, "Print the report as JSON, on standard output");
}

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    parsed.threads = std::clamp(std::thread::hardware_concurrency(), 1U, parsed.http.flows);
    CLI::App app{"Receives an object of an HTTP server into device memory, through several flows."};
    app.footer(footer);
    add_download(app, parsed);
    add_session_options(app, parsed.nic);
    add_consumption(app, parsed);
    try {
        app.parse(argc, argv);
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : 2;
        return std::nullopt;
    }
    parsed.nic.session.max_flows = parsed.http.flows;
    parsed.sha256 = parsed.sha256 || !parsed.expected_sha256.empty();
    return parsed;
}
