// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>

namespace gpurx::gpurxd {

namespace {

constexpr char description[] =
    "Binds memory to NIC queues and steers flows to them for programs that have no right to, as far as a policy lets "
    "them. Needs CAP_NET_ADMIN, and keeps nothing else.";

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    CLI::App app{description};
    app.set_version_flag("--version", "gpurxd " GPURX_VERSION, "Print the version");
    app.add_option("--socket", parsed.socket, "Where clients connect; not used where systemd opens it")
        ->capture_default_str()
        ->option_text("PATH");
    app.add_option("--metrics-directory", parsed.metrics_directory,
                   "Where gpurxd.prom is written, for node_exporter's textfile collector; without it: nowhere")
        ->option_text("DIR");
    app.add_option("--policy", parsed.where.policy, "Who may use which interface; read anew for each client")
        ->capture_default_str()
        ->option_text("PATH");
    app.add_option("--state-directory", parsed.where.state_directory, "Where sessions keep their journals")
        ->capture_default_str()
        ->option_text("PATH");
    app.add_flag("--check", parsed.check, "Read the policy, name every line that is wrong, and exit");
    app.add_option("--connection", parsed.connection)->group("");  // what the daemon starts itself with
    try {
        app.parse(argc, argv);
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : bad_usage;
        return std::nullopt;
    }
    return parsed;
}

}  // namespace gpurx::gpurxd
