// SPDX-License-Identifier: Apache-2.0
#include "daemon.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <gpurx/gpurx.hpp>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "lease/daemon_channel.hpp"
#include "nic.hpp"

namespace gpurx::lab {

using namespace std::chrono_literals;

running_daemon::running_daemon(std::string const& policy, std::string const& name)
    : directory_{std::filesystem::temp_directory_path() / name}
{
    std::filesystem::create_directories(directory_);
    std::filesystem::remove(directory_ / "log");
    std::ofstream{directory_ / "policy"} << policy;
    REQUIRE(::chmod((directory_ / "policy").c_str(), 0600) == 0);
    REQUIRE(::chmod("/dev/udmabuf", 0666) == 0);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread yet
    REQUIRE(::setenv("GPURXD_SOCKET", socket().c_str(), 1) == 0);
    start();
}

running_daemon::~running_daemon()
{
    kill(SIGTERM);
    ::chmod("/dev/udmabuf", 0600);
    ::unsetenv("GPURXD_SOCKET");  // NOLINT(concurrency-mt-unsafe)
}

void running_daemon::start()
{
    // A file of one that was killed would be read as this one's.
    std::filesystem::remove_all(metrics());
    std::filesystem::create_directory(metrics());
    std::vector<std::string> command{
        GPURX_GPURXD,          "--socket", socket(), "--policy", (directory_ / "policy").string(),
        "--metrics-directory", metrics()};
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (auto& word : command)
        arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (directory_ / "log").c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0600);
    auto const error = ::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0 || !comes_true([this] { return is_there(); }))
        throw std::runtime_error{"gpurxd does not start"};
}

void running_daemon::kill(int signal) const
{
    ::kill(pid_, signal);
    ::waitpid(pid_, nullptr, 0);
}

std::string running_daemon::log() const
{
    std::ifstream file{directory_ / "log"};
    return {std::istreambuf_iterator<char>{file}, {}};
}

std::string running_daemon::page() const
{
    std::ifstream file{metrics() / "gpurxd.prom"};
    return {std::istreambuf_iterator<char>{file}, {}};
}

bool running_daemon::is_there() const
{
    if (page().empty())
        return false;
    try {
        detail::daemon_channel const tried{socket(), 1s};
        return true;
    } catch (system_error const&) {
        return false;
    }
}

bool settled(std::string const& before)
{
    return comes_true([&] { return journal_now().owners.empty() && nic_settings() == before; });
}

}  // namespace gpurx::lab
