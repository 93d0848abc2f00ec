// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common_options.hpp"

namespace {

using checksum = gpurx::ingest::fetch_options::checksum;

constexpr char footer[] =
    "  gpurx-fetch http://storage/model.safetensors --safetensors --memory gpu:0 --interface eth1\n"
    "  gpurx-fetch http://storage/object --output object.bin\n"
    "\n"
    "Exit status: 0 received; 1 the transfer failed; 2 the command line is wrong; 3 the bytes differ from the\n"
    "expected ones; 4 the memory could not be allocated, or the session could not be opened;\n"
    "128 plus the number of the signal that ended it.";

checksum parse_checksum(std::string_view name)
{
    if (name == "always")
        return checksum::always;
    return name == "none" ? checksum::none : checksum::automatic;
}

gpurx::ingest::s3_options::addressing parse_addressing(std::string_view name)
{
    using enum gpurx::ingest::s3_options::addressing;
    if (name == "path")
        return path;
    return name == "virtual" ? virtual_host : automatic;
}

void add_download(CLI::App& app, options& parsed)
{
    app.add_option("url", parsed.url,
                   "http://HOST[:PORT]/PATH, https:// likewise, s3://BUCKET/KEY, gs:// likewise, "
                   "az://ACCOUNT/CONTAINER/BLOB, hf://ORG/MODEL@REVISION/FILE, file:///PATH, or a path; with "
                   "--safetensors also an index, a directory, s3://BUCKET/PREFIX/, or "
                   "hf://ORG/MODEL@REVISION")
        ->required();
    app.add_option("--mirror", parsed.http.mirrors,
                   "Another URL of the same object; each serves a part; may be repeated")
        ->allow_extra_args(false);
    app.add_option("--flows", parsed.http.flows, "Connections at a time")
        ->capture_default_str()
        ->check(CLI::Range(1, 1024));
    app.add_option("--chunk-size", parsed.http.chunk_size, "Bytes of one request, as 8MiB")
        ->transform(CLI::AsSizeValue{false})
        ->check(CLI::PositiveNumber)
        ->default_str("8MiB");
    app.add_option("--attempts", parsed.http.attempts,
                   "Failures of a connection in a row after which the transfer fails")
        ->capture_default_str()
        ->check(CLI::Range(1, 1000));
    app.add_option_function<unsigned>(
           "--timeout", [&parsed](unsigned seconds) { parsed.http.timeout = std::chrono::seconds{seconds}; },
           "Seconds without a byte after which a connection is replaced")
        ->check(CLI::Range(1, 86400))
        ->default_str("30");
    app.add_option("--min-speed", parsed.http.min_speed,
                   "Least bytes per second, as 1KiB, of a connection over --timeout; a slower one is replaced; 0: any")
        ->transform(CLI::AsSizeValue{false})
        ->default_str("1KiB");
    app.add_option_function<unsigned>(
           "--deadline", [&parsed](unsigned seconds) { parsed.http.deadline = std::chrono::seconds{seconds}; },
           "Seconds after which the whole transfer fails; without it: no limit")
        ->check(CLI::Range(1, 31'536'000));
    app.add_option("--threads", parsed.threads, "Threads that receive; one at a time serves a connection")
        ->capture_default_str()
        ->check(CLI::Range(1, 256));
}

std::pair<std::string, std::string> parse_header(std::string const& line)
{
    auto const colon = line.find(':');
    if (colon == 0 || colon == std::string::npos)
        throw CLI::ValidationError{"--header", "must have the form 'Name: value'"};
    return {line.substr(0, colon), line.substr(std::min(line.find_first_not_of(' ', colon + 1), line.size()))};
}

std::string first_line_of(std::string const& path)
{
    std::ifstream file{path};
    std::string line;
    if (!std::getline(file, line) || line.empty())
        throw CLI::ValidationError{"--bearer-file", path + " has no token in its first line"};
    return line;
}

// Trust and authentication. A token comes from a file, because all users of the machine can see a command line.
void add_identity(CLI::App& app, gpurx::ingest::fetch_options& parsed)
{
    app.add_option("--ca", parsed.tls.ca_file, "File of the trusted authorities, instead of the system's");
    app.add_option("--cert", parsed.tls.certificate, "File of the client's certificate");
    app.add_option("--key", parsed.tls.key, "File of the certificate's key, if it is another");
    app.add_option_function<std::vector<std::string>>(
           "--header",
           [&parsed](std::vector<std::string> const& lines) {
               std::ranges::transform(lines, std::back_inserter(parsed.headers), parse_header);
           },
           "A field of each request, as 'Name: value'; may be repeated")
        ->allow_extra_args(false);
    app.add_option_function<std::string>(
        "--bearer-file", [&parsed](std::string const& path) { parsed.bearer = first_line_of(path); },
        "File with the bearer token in its first line");
}

// Credentials and other settings come from the places that AWS's own tools read.
void add_s3(CLI::App& app, gpurx::ingest::s3_options& parsed)
{
    app.add_option_function<std::vector<std::string>>(
           "--s3-endpoint",
           [&parsed](std::vector<std::string> const& urls) {
               parsed.endpoint = urls.front();
               parsed.more_endpoints.assign(urls.begin() + 1, urls.end());
           },
           "URL of the S3 server, if it is not AWS; may be repeated, for more servers with the same buckets")
        ->option_text("TEXT")
        ->allow_extra_args(false);
    app.add_option("--s3-region", parsed.region, "Region of the bucket");
    app.add_option_function<std::string>(
           "--s3-addressing", [&parsed](std::string const& name) { parsed.style = parse_addressing(name); },
           "Place of the bucket's name: virtual, as BUCKET.HOST/KEY; path, as HOST/BUCKET/KEY; or automatic: the "
           "profile's, else by host for AWS and by path for others")
        ->check(CLI::IsMember{{"automatic", "path", "virtual"}}.description(""))
        ->option_text("HOW");
    app.add_option("--s3-profile", parsed.profile,
                   "Profile of ~/.aws, instead of AWS_PROFILE and of credentials in the environment");
    app.add_flag("--s3-anonymous", parsed.anonymous, "Sign nothing: the bucket is public");
}

void add_consumption(CLI::App& app, options& parsed)
{
    auto* const listing =
        app.add_flag("--safetensors", parsed.safetensors,
                     "Load the tensors of a safetensors file, or of a model in several, and list them");
    app.add_option("--output", parsed.output,
                   "Write the object to this file, which gets its name when the object is complete; -: to standard "
                   "output, in order. "
                   "With --safetensors: the tensors, each at its offset in the JSON report");
    app.add_option_function<std::string>(
           "--crc32c", [&parsed](std::string const& name) { parsed.http.crc32c = parse_checksum(name); },
           "Compute the CRC32C in the memory of the bytes: none, always, or automatic: if the server announces one, to "
           "compare")
        ->check(CLI::IsMember{{"none", "automatic", "always"}}.description(""))
        ->option_text("WHEN");
    app.add_flag("--sha256", parsed.sha256, "Compute the SHA-256, on the host")->excludes(listing);
    add_expected_sha256(app, parsed.expected_sha256, "Fail if the object's SHA-256 differs")->excludes(listing);
    app.add_flag("--json", parsed.json, "Print the report as JSON, on standard output");
}

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    parsed.threads = std::clamp(std::thread::hardware_concurrency(), 1U, parsed.http.flows);
    CLI::App app{"Loads an object from a server into device memory, through several flows."};
    app.footer(footer);
    app.set_version_flag("--version", "gpurx-fetch " GPURX_VERSION, "Print the version");
    add_download(app, parsed);
    add_identity(app, parsed.http);
    add_s3(app, parsed.http.s3);
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
