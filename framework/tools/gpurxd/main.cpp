// SPDX-License-Identifier: Apache-2.0
//
// gpurxd: binds memory to NIC queues and steers flows to them for programs without the right to.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <gpurx/error.hpp>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "client.hpp"
#include "lease/daemon_channel.hpp"
#include "log.hpp"
#include "policy_file.hpp"
#include "server.hpp"
#include "system_backend.hpp"

namespace {

using namespace gpurx::gpurxd;
using gpurx::detail::unique_fd;

constexpr int bad_usage = 2;

struct command_line {
    server_options server;
    bool check = false;
    int connection = -1;  // not -1: serve this one client
};

constexpr char description[] =
    "Leases NIC queues to programs without CAP_NET_ADMIN, within the limits of a policy: binds their memory, and "
    "steers "
    "their flows. Needs CAP_NET_ADMIN, and drops every other capability.";

// Nothing: the program must end with `exit_code`.
std::optional<command_line> parse_command_line(int argc, char** argv, int& exit_code)
{
    command_line parsed;
    CLI::App app{description};
    app.set_version_flag("--version", "gpurxd " GPURX_VERSION, "Print the version");
    app.add_option("--socket", parsed.server.socket, "Socket for clients; unused if systemd opens the socket")
        ->capture_default_str()
        ->option_text("PATH");
    app.add_option("--metrics-directory", parsed.server.metrics_directory,
                   "Directory for gpurxd.prom, for node_exporter's textfile collector; without it: no file")
        ->option_text("DIR");
    app.add_option("--policy", parsed.server.paths.policy, "Policy file, read again for each client")
        ->capture_default_str()
        ->option_text("PATH");
    app.add_option("--state-directory", parsed.server.paths.state_directory, "Directory of the sessions' journals")
        ->capture_default_str()
        ->option_text("PATH");
    app.add_flag("--check", parsed.check, "Read the policy, print each wrong line, and exit");
    app.add_option("--connection", parsed.connection)->group("");  // for the processes that serve a client
    try {
        app.parse(argc, argv);
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : bad_usage;
        return std::nullopt;
    }
    return parsed;
}

char const* name_of(close_reason how)
{
    switch (how) {
        case close_reason::hung_up:
            return "disconnected";
        case close_reason::silent:
            return "opened no session in time";
        case close_reason::not_ours:
            return "does not use the protocol";
        case close_reason::refused:
            return "was refused";
    }
    return "disconnected";
}

// Limits the time for which a client may leave an answer unread.
void limit_sending(int connection)
{
    timeval const limit{.tv_sec = 5, .tv_usec = 0};
    if (::setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
        gpurx::detail::fail(errno, "set a time limit for", "the connection");
}

int served_connection = -1;

// Ends the service like a disconnect of the client, which undoes everything.
extern "C" void end_service(int /*signal*/)
{
    auto const error = errno;
    ::shutdown(served_connection, SHUT_RD);
    errno = error;
}

int serve_client(command_line const& chosen)
{
    std::signal(SIGINT, SIG_IGN);
    // Outlives the client's place, so that the place is free when the client sees the end of the connection.
    gpurx::detail::daemon_channel connection{unique_fd{chosen.connection}};
    served_connection = connection.native_handle();
    std::signal(SIGTERM, end_service);
    limit_sending(connection.native_handle());
    auto from = peer_caller(connection.native_handle());
    auto const uid = from.uid;
    system_backend backend{chosen.server.paths, std::move(from), connection.native_handle()};
    // serve() has logged a refusal.
    if (auto const how = serve(connection, backend); how != close_reason::hung_up && how != close_reason::refused)
        log_line(fmt::format("a client of user {} {}", uid, name_of(how)));
    return 0;
}

int check(command_line const& chosen)
{
    auto const& path = chosen.server.paths.policy;
    auto const found = parse_policy_file(path);
    if (auto const* const known = std::get_if<policy>(&found)) {
        fmt::print("{}: {} lines that allow access\n", path, known->lines.size());
        return 0;
    }
    for (auto const& damage : std::get<std::vector<policy_damage>>(found))
        fmt::print(stderr, "gpurxd: {} line {}: {}\n", path, damage.line, damage.what);
    return 1;
}

int run(command_line const& chosen)
{
    keep_only_net_admin("start gpurxd as root, or by its systemd unit");
    static_cast<void>(read_policy(chosen.server.paths.policy));
    boost::asio::io_context io{1};
    server listening{io, chosen.server};
    listening.start();
    fmt::print(stderr, "gpurxd {}: at {}\n", GPURX_VERSION, chosen.server.socket);
    io.run();
    return 0;
}

}  // namespace

int main(int argc, char** argv)
try {
    int exit_code = 0;
    auto const chosen = parse_command_line(argc, argv, exit_code);
    if (!chosen)
        return exit_code;
    // ps and systemd would show a process started from /proc/self/exe as "exe".
    static_cast<void>(::prctl(PR_SET_NAME, "gpurxd"));
    if (chosen->check)
        return check(*chosen);
    return chosen->connection >= 0 ? serve_client(*chosen) : run(*chosen);
} catch (std::exception const& error) {
    fmt::print(stderr, "gpurxd: {}\n", error.what());
    return 1;
}
