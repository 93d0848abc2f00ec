// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>

namespace gpurx::doctor {

namespace {

constexpr char description[] =
    "Says whether device memory TCP works here: on INTERFACE, or on which interface best. Each finding has what was "
    "seen "
    "and the command that mends it. Nothing is changed without --fix.";

constexpr char footer[] =
    "Exit status: 0 ready; 1 degraded: it works, but worse than it could; 2 not possible; 3 the command line is "
    "wrong,\n"
    "or there is no such interface. Without INTERFACE that of the best. With --undo: 0 all was put back; 1 something "
    "was\n"
    "left as it is; 2 it could not be looked at.\n"
    "\n"
    "  gpurx-doctor                        every interface, a line each\n"
    "  gpurx-doctor eth1 --gpu 0           all about one, with a GPU\n"
    "  gpurx-doctor eth1 --fix --dry-run   the commands that --fix stands for\n"
    "  gpurx-doctor tap eth1               the flows that it receives; see gpurx-doctor tap --help";

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    CLI::App app{description};
    app.footer(footer);
    app.set_version_flag("--version", "gpurx-doctor " GPURX_VERSION, "Print the version");
    auto* const interface = app.add_option("INTERFACE", parsed.interface, "As ip link names it");
    app.add_option("--gpu", parsed.gpu, "Also look at the GPU with this CUDA ordinal, and at the way to it")
        ->check(CLI::NonNegativeNumber)
        ->option_text("N");
    app.add_option("--memory", parsed.memory, "What a program would give to the NIC, as 64MiB")
        ->transform(CLI::AsSizeValue{false})
        ->default_str("64MiB")
        ->option_text("SIZE");
    app.add_option("--state-directory", parsed.state_directory, "Where sessions keep their journals")
        ->capture_default_str()
        ->option_text("PATH");
    app.add_flag("--json", parsed.json, "Print JSON");
    auto* const fix = app.add_flag("--fix", parsed.fix,
                                   "Do what no session does by itself: undo what killed processes left, set the "
                                   "interface up, make its ring fit. Noted in PATH-doctor for --undo")
                          ->needs(interface);
    app.add_flag("--dry-run", parsed.dry_run, "With --fix: print the commands instead")->needs(fix);
    app.add_flag("--undo", parsed.undo, "Put back what --fix has set")->needs(interface)->excludes(fix);
    try {
        app.parse(argc, argv);
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : bad_usage;
        return std::nullopt;
    }
    return parsed;
}

}  // namespace gpurx::doctor
