// SPDX-License-Identifier: Apache-2.0
//
// gpurxd: binds memory to NIC queues and steers flows to them for programs without the right to.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <utility>
#include <variant>
#include <vector>

#include <gpurx/error.hpp>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "doors.hpp"
#include "lease/daemon_channel.hpp"
#include "log.hpp"
#include "options.hpp"
#include "reception.hpp"
#include "rights.hpp"
#include "serve.hpp"
#include "spawn.hpp"
#include "system_backend.hpp"

namespace {

using namespace gpurx::gpurxd;
using gpurx::detail::unique_fd;

char const* name_of(parting how)
{
    switch (how) {
        case parting::hung_up:
            return "hung up";
        case parting::silent:
            return "asked for nothing";
        case parting::not_ours:
            return "does not speak the protocol";
        case parting::refused:
            return "was refused";
    }
    return "left";
}

// So long may a client not read what is said to it.
void limit_sending(int connection)
{
    timeval const limit{.tv_sec = 5, .tv_usec = 0};
    if (::setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
        gpurx::detail::fail(errno, "set a time limit for", "the connection");
}

int served_connection = -1;

// As if the client had hung up: all is undone then as ever.
extern "C" void end_service(int /*signal*/)
{
    auto const error = errno;
    ::shutdown(served_connection, SHUT_RD);
    errno = error;
}

int serve_client(options const& chosen)
{
    std::signal(SIGINT, SIG_IGN);
    // Outlives the client's place, which is free when the client sees the end.
    gpurx::detail::daemon_channel connection{unique_fd{chosen.connection}};
    served_connection = connection.native_handle();
    std::signal(SIGTERM, end_service);
    limit_sending(connection.native_handle());
    auto from = peer_caller(connection.native_handle());
    auto const uid = from.uid;
    system_backend backend{chosen.where, std::move(from), connection.native_handle()};
    // What was refused has been said.
    if (auto const how = serve(connection, backend); how != parting::hung_up && how != parting::refused)
        log_line(fmt::format("a client of user {} {}", uid, name_of(how)));
    return 0;
}

int check(options const& chosen)
{
    auto const& path = chosen.where.policy;
    auto const found = parse_policy_file(path);
    if (auto const* const known = std::get_if<policy>(&found)) {
        fmt::print("{}: {} lines that allow something\n", path, known->lines.size());
        return 0;
    }
    for (auto const& damage : std::get<std::vector<policy_damage>>(found))
        fmt::print(stderr, "gpurxd: {} line {}: {}\n", path, damage.line, damage.what);
    return 1;
}

int run(options const& chosen)
{
    keep_only_net_admin();
    static_cast<void>(read_policy(chosen.where.policy));
    boost::asio::io_context io{1};
    reception door{io, chosen, open_door(chosen.socket)};
    door.open();
    fmt::print(stderr, "gpurxd {}: at {}\n", GPURX_VERSION, chosen.socket);
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
    // What it has started from /proc/self/exe is called "exe" by ps, and in what systemd says.
    static_cast<void>(::prctl(PR_SET_NAME, "gpurxd"));
    if (chosen->check)
        return check(*chosen);
    return chosen->connection >= 0 ? serve_client(*chosen) : run(*chosen);
} catch (std::exception const& error) {
    fmt::print(stderr, "gpurxd: {}\n", error.what());
    return 1;
}
