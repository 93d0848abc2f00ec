// SPDX-License-Identifier: Apache-2.0
//
// gpurx-run: starts a program without rights whose session receives by transport zcrx.
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gpurx/error.hpp>

#include "base/failure.hpp"
#include "base/zcrx_support.hpp"
#include "launcher.hpp"
#include "lease/inherited_queue.hpp"
#include "nic/process.hpp"
#include "system_backend.hpp"

namespace {

using gpurx::detail::fail;
namespace detail = gpurx::detail;

constexpr int bad_usage = 2;
constexpr int not_started = 127;

struct command_line {
    std::string interface;
    unsigned threads = 8;
    std::string user;
    std::string state_directory = "/run/gpurx";
    std::vector<std::string> program;
};

// Nothing: the program must end with `exit_code`.
std::optional<command_line> parse_command_line(int argc, char** argv, int& exit_code)
{
    command_line parsed;
    CLI::App app{
        "Starts a program without rights that receives by transport zcrx. gpurx-run cannot take the queue back."};
    app.set_version_flag("--version", "gpurx-run " GPURX_VERSION, "Print the version");
    app.add_option("--interface", parsed.interface, "NIC whose queue the program gets")
        ->required()
        ->option_text("NAME");
    app.add_option("--threads", parsed.threads, "Threads of the program that receive, those that have ended included")
        ->capture_default_str()
        ->check(CLI::Range(1, 1024))
        ->option_text("N");
    app.add_option("--user", parsed.user, "User of the program, by name or number; needed if gpurx-run is root's")
        ->option_text("USER");
    app.add_option("--state-directory", parsed.state_directory, "Directory of the sessions' journals")
        ->capture_default_str()
        ->option_text("PATH");
    app.footer("The program and its arguments follow \"--\": gpurx-run --interface NAME -- PROGRAM [ARGUMENT...]");
    // What follows is the program's: CLI11 would take brackets and commas in it for lists.
    auto** const own = std::find(argv, argv + argc, std::string_view{"--"});
    if (own != argv + argc)
        parsed.program.assign(own + 1, argv + argc);
    try {
        app.parse(static_cast<int>(own - argv), argv);
        if (parsed.program.empty())
            throw CLI::RequiredError{"-- PROGRAM"};
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : bad_usage;
        return std::nullopt;
    }
    return parsed;
}

struct account {
    uid_t uid = 0;
    gid_t gid = 0;
    std::string name;  // empty: only numbers
};

account find_account(std::string const& user)
{
    // No other thread asks.
    if (auto const* const known = ::getpwnam(user.c_str()))  // NOLINT(concurrency-mt-unsafe)
        return {known->pw_uid, known->pw_gid, known->pw_name};
    uid_t number = 0;
    auto const* const end = user.data() + user.size();
    if (auto const read = std::from_chars(user.data(), end, number); read.ec != std::errc{} || read.ptr != end)
        fail(ENOENT, "find user", user);
    if (auto const* const known = ::getpwuid(number))  // NOLINT(concurrency-mt-unsafe)
        return {known->pw_uid, known->pw_gid, known->pw_name};
    return {number, number, {}};
}

// Nothing: the program has the user of this process.
std::optional<account> account_for(command_line const& chosen)
{
    if (!chosen.user.empty())
        return find_account(chosen.user);
    if (::geteuid() == 0)
        fail(EINVAL, "start", chosen.program.front(), "name the user of the program: --user");
    return std::nullopt;
}

void check_machine(std::string const& interface)
{
    detail::index_of_interface(interface);
    auto const support = detail::observe_zcrx();
    if (find_lack(support) != detail::zcrx_lack::nothing)
        fail(EOPNOTSUPP, "use", "transport zcrx", describe(support));
    // A right that gpurx-run gives up would permit it now.
    if (support.disabled.value_or(0) != 0)
        fail(EPERM, "use", "transport zcrx", "set kernel.io_uring_disabled to 0");
}

void drop_rights(std::optional<account> const& to)
{
    if (to) {
        auto const groups = to->name.empty() ? ::setgroups(0, nullptr) : ::initgroups(to->name.c_str(), to->gid);
        if (groups != 0 || ::setresgid(to->gid, to->gid, to->gid) != 0 || ::setresuid(to->uid, to->uid, to->uid) != 0)
            fail(errno, "become user", std::to_string(to->uid), "start gpurx-run as root");
    }
    if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        fail(errno, "drop", "the rights of gpurx-run");
}

[[noreturn]] void become_program(command_line chosen, std::optional<account> const& user, std::string const& variable,
                                 pid_t launcher)
try {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): this process has one thread
    if (::setenv(detail::inherited_queue_variable, variable.c_str(), 1) != 0)
        fail(errno, "set", detail::inherited_queue_variable);
    drop_rights(user);
    // Nobody would restore the NIC behind a program that goes on.
    if (::prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0) != 0 || ::getppid() != launcher)
        fail(ESRCH, "start", chosen.program.front());
    std::vector<char*> arguments;
    for (auto& word : chosen.program)
        arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::execvp(arguments[0], arguments.data());
    fail(errno, "start", chosen.program.front());
} catch (std::exception const& error) {
    fmt::print(stderr, "gpurx-run: {}\n", error.what());
    std::fflush(stderr);
    ::_exit(not_started);
}

volatile std::sig_atomic_t program = 0;  // its number

extern "C" void pass_on(int signal)
{
    auto const error = errno;
    // A terminal sends the others to the program, too.
    if (program > 0 && (signal == SIGTERM || signal == SIGHUP))
        ::kill(static_cast<pid_t>(program), signal);
    errno = error;
}

constexpr std::array passed_on{SIGTERM, SIGHUP, SIGINT, SIGQUIT};

void outlive_program()
{
    struct sigaction action {};
    action.sa_handler = pass_on;
    action.sa_flags = SA_RESTART;
    for (int const signal : passed_on)
        ::sigaction(signal, &action, nullptr);
}

// A signal that comes meanwhile waits until there is a program to pass it on to.
void start_program(command_line const& chosen, std::optional<account> const& user, std::string const& variable)
{
    sigset_t held;
    sigset_t before;
    ::sigemptyset(&held);
    for (int const signal : passed_on)
        ::sigaddset(&held, signal);
    ::pthread_sigmask(SIG_BLOCK, &held, &before);
    auto const launcher = ::getpid();
    auto const child = ::fork();
    if (child < 0)
        fail(errno, "start", chosen.program.front());
    if (child == 0) {
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        become_program(chosen, user, variable, launcher);
    }
    program = child;
    outlive_program();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

int wait_for_program()
{
    int status = 0;
    while (::waitpid(static_cast<pid_t>(program), &status, 0) < 0 && errno == EINTR) {
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Until the program's session, or the program, has ended.
void serve_program(command_line const& chosen, uid_t user, gpurx::launcher::handed_on& of)
try {
    // To signal the program takes its user, or a capability.
    if (::setresuid(user, static_cast<uid_t>(-1), static_cast<uid_t>(-1)) != 0)
        fail(errno, "become user", std::to_string(user));
    gpurx::gpurxd::keep_only_net_admin("start gpurx-run as root");
    gpurx::launcher::serve(of, chosen.interface, chosen.state_directory, user);
} catch (std::exception const& error) {
    fmt::print(stderr, "gpurx-run: {}\n", error.what());
}

int run(command_line const& chosen)
{
    auto const user = account_for(chosen);
    check_machine(chosen.interface);
    auto of = gpurx::launcher::prepare(chosen.interface, chosen.threads);
    start_program(chosen, user, of.variable);
    of.inherited.clear();
    serve_program(chosen, user ? user->uid : ::getuid(), of);
    // A program without a session has only the rings.
    of.rings.clear();
    return wait_for_program();
}

}  // namespace

int main(int argc, char** argv)
try {
    int exit_code = 0;
    auto const chosen = parse_command_line(argc, argv, exit_code);
    return chosen ? run(*chosen) : exit_code;
} catch (std::exception const& error) {
    fmt::print(stderr, "gpurx-run: {}\n", error.what());
    return 1;
}
