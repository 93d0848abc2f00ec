// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>

namespace {

constexpr char footer[] =
    "Send with anything that speaks TCP:\n"
    "  receive_file --listen 0.0.0.0:9000 --output copy.bin\n"
    "  socat -u FILE:original.bin TCP:this-host:9000\n"
    "\n"
    "Exit status: 0 received; 1 the transfer failed; 2 the command line is wrong;\n"
    "3 the SHA-256 is not the expected one; 4 the memory or the session could not be had; 130 interrupted.";

// HOST:PORT, with a v6 address in brackets.
std::optional<endpoint_name> parse_endpoint(std::string const& text)
{
    auto const colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == text.size())
        return std::nullopt;
    auto host = text.substr(0, colon);
    if (host.front() == '[' && host.back() == ']')
        host = host.substr(1, host.size() - 2);
    else if (host.find(':') != std::string::npos)
        return std::nullopt;
    return endpoint_name{host, text.substr(colon + 1)};
}

// host, or gpu:N.
std::optional<int> parse_memory(std::string const& text)
{
    if (text == "host")
        return -1;
    constexpr std::string_view prefix = "gpu:";
    int ordinal = -1;
    auto const* const begin = text.data() + prefix.size();
    auto const* const end = text.data() + text.size();
    if (!text.starts_with(prefix) || std::from_chars(begin, end, ordinal).ptr != end || ordinal < 0)
        return std::nullopt;
    return ordinal;
}

gpurx::transport parse_transport(std::string const& name)
{
    for (auto const value : {gpurx::transport::devmem, gpurx::transport::copy}) {
        if (name == to_string(value))
            return value;
    }
    return gpurx::transport::automatic;
}

gpurx::token_kind parse_tokens(std::string const& name)
{
    for (auto const value : {gpurx::token_kind::array, gpurx::token_kind::xarray}) {
        if (name == to_string(value))
            return value;
    }
    return gpurx::token_kind::automatic;
}

bool is_sha256(std::string const& text)
{
    return text.size() == 64 && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c); });
}

void add_source(CLI::App& app, options& parsed)
{
    auto const endpoint = [&parsed](bool listens) {
        return [&parsed, listens](std::string const& text) {
            auto const name = parse_endpoint(text);
            if (!name)
                throw CLI::ValidationError{text, "expected HOST:PORT, with a v6 address in brackets"};
            parsed.listens = listens;
            parsed.endpoint = *name;
        };
    };
    auto* const where = app.add_option_group("where", "Where the bytes come from");
    where->add_option_function<std::string>("--listen", endpoint(true), "Accept one connection here (ADDRESS:PORT)");
    where->add_option_function<std::string>("--connect", endpoint(false), "Connect to this HOST:PORT");
    where->require_option(1);
}

void add_session(CLI::App& app, options& parsed)
{
    auto const bytes = CLI::AsSizeValue{false};
    app.add_option("--interface", parsed.session.interface, "The NIC (transport devmem needs one)");
    app.add_option("--queues", parsed.session.rx_queues, "RX queues to set aside")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option_function<std::string>(
           "--transport", [&parsed](std::string const& name) { parsed.session.transport = parse_transport(name); },
           "automatic, devmem or copy; automatic falls back and says why")
        ->check(CLI::IsMember{{"automatic", "devmem", "copy"}}.description(""))
        ->option_text("NAME");
    app.add_option_function<std::string>(
           "--memory",
           [&parsed](std::string const& text) {
               auto const gpu = parse_memory(text);
               if (!gpu)
                   throw CLI::ValidationError{text, "expected host or gpu:N"};
               parsed.gpu = *gpu;
           },
           "host, or gpu:N for the GPU with CUDA ordinal N")
        ->option_text("KIND");
    app.add_option("--memory-size", parsed.memory_size, "Bytes that the NIC may fill, as 64MiB")
        ->transform(bytes)
        ->default_str("64MiB");
    app.add_option("--rx-page-size", parsed.session.rx_page_size,
                   "Bytes of a page on the NIC, as 16KiB; default: its own")
        ->transform(bytes);
    app.add_option_function<std::string>(
           "--tokens", [&parsed](std::string const& name) { parsed.session.tokens = parse_tokens(name); },
           "automatic, array or xarray: how the kernel counts pages on loan; automatic takes what it has")
        ->check(CLI::IsMember{{"automatic", "array", "xarray"}}.description(""))
        ->option_text("NAME");
}

void add_consumption(CLI::App& app, options& parsed)
{
    app.add_flag("--loan", parsed.loans,
                 "Consume the bytes where the NIC put them, instead of reading them into a range");
    app.add_option("--output", parsed.output, "Write what arrives to this file");
    app.add_option("--expect-sha256", parsed.expected_sha256, "Fail unless this is the SHA-256 of what arrived")
        ->check([](std::string const& text) {
            return is_sha256(text) ? std::string{} : std::string{"expected 64 hexadecimal digits"};
        })
        ->option_text("HEX");
    app.add_flag("--json", parsed.json, "Print the report as JSON, on standard output");
}

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    CLI::App app{"Receives what one TCP connection sends, until it ends, into device memory."};
    app.footer(footer);

    add_source(app, parsed);
    add_session(app, parsed);
    add_consumption(app, parsed);

    // One connection: the whole memory is for it.
    parsed.session.max_flows = 1;
    try {
        app.parse(argc, argv);
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : 2;
        return std::nullopt;
    }
    std::transform(parsed.expected_sha256.begin(), parsed.expected_sha256.end(), parsed.expected_sha256.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return parsed;
}
