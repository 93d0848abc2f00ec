// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>

#include "sha256_option.hpp"

namespace {

constexpr char footer[] =
    "Send with anything that speaks TCP:\n"
    "  receive_file --listen 0.0.0.0:9000 --output copy.bin\n"
    "  socat -u FILE:original.bin TCP:this-host:9000\n"
    "\n"
    "Exit status: 0 received; 1 the transfer failed; 2 the command line is wrong;\n"
    "3 the SHA-256 is not the expected one; 4 the memory or the session could not be had; 130 interrupted.";

void add_source(CLI::App& app, options& parsed)
{
    auto const endpoint = [&parsed](bool listens) {
        return [&parsed, listens](std::string const& text) {
            parsed.endpoint = endpoint_argument(text);
            parsed.listens = listens;
        };
    };
    auto* const where = app.add_option_group("where", "Where the bytes come from");
    where->add_option_function<std::string>("--listen", endpoint(true), "Accept one connection here (ADDRESS:PORT)");
    where->add_option_function<std::string>("--connect", endpoint(false), "Connect to this HOST:PORT");
    where->require_option(1);
}

void add_consumption(CLI::App& app, options& parsed)
{
    app.add_flag("--loan", parsed.loans,
                 "Consume the bytes where the NIC put them, instead of reading them into a range");
    app.add_option(
        "--output", parsed.output,
        "Write what arrives to this file, which has its name once all has come and is right; -: to standard output");
    add_expected_sha256(app, parsed.expected_sha256, "Fail unless this is the SHA-256 of what arrived");
    app.add_flag("--json", parsed.json, "Print the report as JSON, on standard output");
}

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    CLI::App app{"Receives what one TCP connection sends, until it ends, into device memory."};
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
