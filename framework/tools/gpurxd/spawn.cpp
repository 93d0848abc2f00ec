// SPDX-License-Identifier: Apache-2.0
#include "spawn.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/failure.hpp"
#include "base/syscalls.hpp"

namespace gpurx::gpurxd {

namespace {

// Where none of them lies on another's place in the child.
constexpr int out_of_the_way = 64;

void set_actions(posix_spawn_file_actions_t& actions, std::span<detail::unique_fd const> descriptors)
{
    ::posix_spawn_file_actions_init(&actions);
    int next = first_of_child;
    for (auto const& each : descriptors)
        ::posix_spawn_file_actions_adddup2(&actions, each.get(), next++);
}

}  // namespace

pid_t start_process(std::vector<std::string> command, std::span<int const> descriptors)
{
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (auto& argument : command)
        arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    std::vector<detail::unique_fd> moved;
    for (auto const each : descriptors) {
        moved.emplace_back(::fcntl(each, F_DUPFD_CLOEXEC, out_of_the_way));
        if (!moved.back())
            detail::fail(errno, "start", "a process");
    }
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    set_actions(actions, moved);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    sigset_t none;
    ::sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    pid_t pid = -1;
    auto const error = ::posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, arguments.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        detail::fail(error, "start", "a process");
    return pid;
}

}  // namespace gpurx::gpurxd
