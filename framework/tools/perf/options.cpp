// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <string_view>

#include "protocol.hpp"

namespace gpurx::perf {

namespace {

constexpr char description[] =
    "Measures the cost of receiving TCP into device memory, or any other: throughput, CPU and latency of messages that "
    "the server acknowledges.";

constexpr char footer[] =
    "  gpurx-perf server --interface eth1 --compare --loan   alternates rounds of reads and of loans\n"
    "  gpurx-perf client 10.77.0.1 --flows 8 --rounds 14     on another machine\n"
    "\n"
    "Exit status: 0 measured; 1 the measurement failed; 2 the command line is wrong; 3 received bytes differ from the "
    "sent ones.";

std::uint16_t port_of(std::string const& text)
{
    std::uint16_t port = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    if (error != std::errc{} || end != text.data() + text.size())
        throw CLI::ValidationError{"PORT", "'" + text + "' is not a number from 0 to 65535"};
    return port;
}

CLI::Option* add_size(CLI::App& app, std::string const& name, std::uint64_t& value, std::string const& usual,
                      std::string const& about)
{
    return app.add_option(name, value, about)->transform(CLI::AsSizeValue{false})->default_str(usual);
}

transport transport_of(std::string_view name)
{
    auto const& all = {transport::automatic, transport::devmem, transport::zcrx, transport::copy};
    return *std::ranges::find(all, name, [](transport each) { return to_string(each); });
}

// Adds the options that make a setting.
void add_setting(CLI::App& app, setting& of)
{
    app.add_option("--interface", of.session.interface, "The NIC; without it only transport copy works");
    app.add_option_function<std::string>(
           "--transport", [&of](std::string const& name) { of.session.transport = transport_of(name); },
           "Transport of the session")
        ->check(CLI::IsMember({"automatic", "devmem", "zcrx", "copy"}))
        ->default_str("automatic");
    app.add_flag("--allow-zcrx", of.session.allow_zcrx, "Let transport automatic use zcrx");
    add_size(app, "--memory", of.memory, "64MiB", "Memory that the NIC writes to, as 64MiB");
    app.add_option("--gpu", of.gpu, "Use memory of the GPU with this CUDA ordinal, not the host's");
    app.add_option("--max-flows", of.session.max_flows, "Connections that share the memory")
        ->check(CLI::Range(1U, most_flows));
    app.add_option("--rx-queues", of.session.rx_queues, "Queues to set aside")->check(CLI::Range(1, 1024));
    app.add_option("--rx-page-size", of.session.rx_page_size, "Bytes of the NIC's pages; 0: a page of the kernel");
    app.add_flag("--loan,!--read", of.loans,
                 "Borrow the bytes where the NIC wrote them, instead of reading them in order");
}

std::vector<std::string> words_of(std::string_view text)
{
    std::vector<std::string> words;
    for (std::size_t at = 0; (at = text.find_first_not_of(' ', at)) != std::string_view::npos;) {
        auto const end = std::min(text.find(' ', at), text.size());
        words.emplace_back(text.substr(at, end - at));
        at = end;
    }
    return words;
}

// Returns the first setting with the options of `text` changed.
setting other_setting(setting const& first, std::string const& text)
{
    auto other = first;
    other.name = text;
    CLI::App app;
    app.set_help_flag();
    add_setting(app, other);
    auto words = words_of(text);
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    try {
        app.parse(words);
    } catch (CLI::ParseError const& error) {
        throw CLI::ValidationError{"--compare", "'" + text + "': " + error.what()};
    }
    return other;
}

struct server_line {
    server_options made;
    setting first;
    std::vector<std::string> others;
};

void add_server(CLI::App& app, server_line& line)
{
    auto* const server = app.add_subcommand("server", "Receives into device memory, round after round");
    server->add_option("--listen", line.made.address, "Address of the listener")->capture_default_str();
    server->add_option("--port", line.made.port, "Port of the listener")->capture_default_str();
    add_setting(*server, line.first);
    server
        ->add_option("--compare", line.others,
                     "A further setting with these options changed, as one argument: '--transport copy --loan'. "
                     "Settings take turns. May be repeated")
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);
    server->add_option("--rounds", line.made.rounds, "End after this number of rounds; 0: never")
        ->capture_default_str();
    server->add_flag("--verify", line.made.verify, "Compare every byte with the sent one, on the CPU, in host memory");
}

void add_client(CLI::App& app, client_options& made, std::string& where)
{
    auto* const client = app.add_subcommand("client", "Sends, and prints the figures");
    client->add_option("HOST", where, "The server, as HOST or HOST:PORT")->required();
    client->add_option("--flows", made.flows, "Connections")->check(CLI::Range(1U, most_flows))->capture_default_str();
    client->add_option("--message", made.message_size, "Bytes of a message, a multiple of 8")
        ->transform(CLI::AsSizeValue{false})
        ->check(CLI::Range(8U, largest_message))
        ->default_str("256KiB");
    client->add_option("--window", made.window, "Unacknowledged messages of a flow at a time; 1: no queueing")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    auto const add_seconds = [client](std::string const& name, std::chrono::milliseconds& value, double least,
                                      char const* about) {
        client
            ->add_option_function<double>(
                name, [&value](double given) { value = std::chrono::milliseconds{std::int64_t(given * 1000)}; }, about)
            ->check(CLI::Range(least, 3600.0))
            ->default_str(std::to_string(value.count() / 1000));
    };
    add_seconds("--warm-up", made.warm_up, 0, "Seconds of each round before the measurement");
    add_seconds("--seconds", made.measured, 0.001, "Seconds of the measurement in each round");
    client->add_option("--rounds", made.rounds, "Number of rounds; a multiple of the number of settings is fair")
        ->check(CLI::Range(1, 10'000))
        ->capture_default_str();
    client->add_option("--json", made.json, "Write all rounds to this file; -: to standard output, without the table");
}

server_options finish(server_line& line)
{
    line.first.name = line.first.loans ? "--loan" : "--read";
    if (line.first.session.transport != transport::automatic)
        line.first.name += " --transport " + std::string{to_string(line.first.session.transport)};
    line.made.settings.push_back(line.first);
    for (auto const& text : line.others)
        line.made.settings.push_back(other_setting(line.first, text));
    return std::move(line.made);
}

client_options finish(client_options& made, std::string const& where)
{
    if (made.message_size % 8 != 0)
        throw CLI::ValidationError{"--message", "a message is a multiple of 8 bytes"};
    auto const colon = where.rfind(':');
    made.host = where.substr(0, colon);
    made.port = colon == std::string::npos ? "5210" : where.substr(colon + 1);
    static_cast<void>(port_of(made.port));
    return std::move(made);
}

}  // namespace

std::optional<options> parse_command_line(int argc, char const* const* argv, int& exit_code)
{
    server_line server;
    client_options client;
    std::string where;
    CLI::App app{description};
    app.footer(footer);
    app.set_version_flag("--version", "gpurx-perf " GPURX_VERSION, "Print the version");
    app.require_subcommand(1);
    add_server(app, server);
    add_client(app, client, where);
    try {
        app.parse(argc, argv);
        if (app.got_subcommand("server"))
            return finish(server);
        return finish(client, where);
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : bad_usage;
        return std::nullopt;
    }
}

}  // namespace gpurx::perf
