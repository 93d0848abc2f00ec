// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <vector>

namespace gpurx::doctor {

namespace {

constexpr char description[] =
    "Checks whether device memory TCP works here: on INTERFACE, or on each interface. Each finding has the evidence "
    "and "
    "the command that fixes it. Changes nothing without --fix or --try-zcrx.";

constexpr char footer[] =
    "Exit status: 0 ready; 1 degraded: it works, but below its best; 2 not possible; 3 the command line is wrong, or\n"
    "the interface does not exist. Without INTERFACE: the status of the best interface. With --undo: 0 all settings\n"
    "were restored; 1 some settings were left; 2 the settings could not be read.\n"
    "\n"
    "  gpurx-doctor                        every interface, a line each\n"
    "  gpurx-doctor eth1 --gpu 0           all findings of one interface and a GPU\n"
    "  gpurx-doctor eth1 --fix --dry-run   the commands of --fix\n"
    "  gpurx-doctor tap eth1               the flows that eth1 receives; see gpurx-doctor tap --help";

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    CLI::App app{description};
    app.footer(footer);
    app.set_version_flag("--version", "gpurx-doctor " GPURX_VERSION, "Print the version");
    auto* const interface = app.add_option("INTERFACE", parsed.interface, "Name of the network interface");
    app.add_option("--gpu", parsed.gpu, "Also check the GPU with this CUDA ordinal, and the path to it")
        ->check(CLI::NonNegativeNumber)
        ->option_text("N");
    app.add_option("--memory", parsed.memory, "Memory that a program would give to the NIC, as 64MiB")
        ->transform(CLI::AsSizeValue{false})
        ->default_str("64MiB")
        ->option_text("SIZE");
    app.add_option("--state-directory", parsed.state_directory, "Directory of the sessions' journals")
        ->capture_default_str()
        ->option_text("PATH");
    app.add_flag("--json", parsed.json, "Print JSON");
    auto* const fix = app.add_flag("--fix", parsed.fix,
                                   "Make the changes that no session makes: undo changes of killed processes, set the "
                                   "interface up, make its ring fit. Recorded in PATH-doctor for --undo")
                          ->needs(interface);
    app.add_flag("--dry-run", parsed.dry_run, "With --fix: print the commands, and change nothing")->needs(fix);
    app.add_flag("--undo", parsed.undo, "Restore the settings that --fix has changed")->needs(interface)->excludes(fix);
    app.add_flag("--try-zcrx", parsed.try_zcrx,
                 "Also take a queue of INTERFACE, register it with io_uring, and give it back")
        ->needs(interface)
        ->excludes(fix)
        ->excludes("--undo");
    try {
        app.parse(argc, argv);
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : bad_usage;
        return std::nullopt;
    }
    return parsed;
}

}  // namespace gpurx::doctor

namespace gpurx::doctor::tap {

namespace {

constexpr char description[] =
    "Shows the TCP flows that INTERFACE receives, from their headers, also flows to device memory: rate, gaps, packets "
    "out of order, retransmissions, packets that the NIC did not split, and the window. Without --port or --flow: the "
    "flows of gpurx sessions. Ends at an interrupt, or after --seconds, with the totals. Keeps no payload. Needs "
    "CAP_NET_RAW.";

constexpr char footer[] =
    "Exit status: 0 the tap ended; 2 it failed; 3 the command line is wrong, or the interface does not exist.\n"
    "\n"
    "  gpurx-doctor tap eth1                          a table, every second\n"
    "  gpurx-doctor tap eth1 --write flows.pcapng     a file for wireshark or tcpdump\n"
    "  gpurx-doctor tap eth1 --write - | tshark -r -  live, in tshark\n"
    "  gpurx-doctor tap eth1 --flow '*:5000,10.0.0.2:*' --seconds 10 --json";

void choose(options& parsed, std::vector<std::uint16_t> const& ports, std::vector<std::string> const& flows)
{
    for (auto const port : ports)
        parsed.chosen.merge(of_port(port));
    for (auto const& flow : flows) {
        try {
            parsed.chosen.merge(of_flow(flow));
        } catch (std::invalid_argument const& error) {
            throw CLI::ValidationError{"--flow", error.what()};
        }
    }
}

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    std::vector<std::uint16_t> ports;
    std::vector<std::string> flows;
    double seconds = 0;
    CLI::App app{description, "gpurx-doctor tap"};
    app.footer(footer);
    app.add_option("INTERFACE", parsed.interface, "Name of the network interface")->required();
    app.add_option("--port", ports, "Flows with this port at either end; may be repeated")
        ->check(CLI::Range(1, 65535))
        ->allow_extra_args(false)
        ->option_text("N");
    app.add_option("--flow", flows, "Flows between these ends, each ADDRESS:PORT with * for any; may be repeated")
        ->allow_extra_args(false)
        ->option_text("LOCAL,REMOTE");
    app.add_option("--write", parsed.file, "Write the headers to FILE as pcapng; -: to standard output")
        ->option_text("FILE");
    auto* const time = app.add_option("--seconds", seconds, "End after this number of seconds")
                           ->check(CLI::Range(0.001, 1e9))
                           ->option_text("N");
    app.add_option("--buffer", parsed.buffer, "Size of the ring of captured headers")
        ->transform(CLI::AsSizeValue{false})
        ->check(CLI::Range(std::size_t{128} << 10, std::size_t{1} << 30))
        ->default_str("2MiB")
        ->option_text("SIZE");
    app.add_option("--state-directory", parsed.state_directory, "Directory of the sessions' journals")
        ->capture_default_str()
        ->option_text("PATH");
    app.add_flag("--json", parsed.json, "Print the totals as JSON, and no table");
    try {
        app.parse(argc, argv);
        choose(parsed, ports, flows);
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : bad_usage;
        return std::nullopt;
    }
    if (time->count() > 0)
        parsed.time.emplace(seconds);
    return parsed;
}

}  // namespace gpurx::doctor::tap
