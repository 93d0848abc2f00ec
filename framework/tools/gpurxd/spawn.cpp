// SPDX-License-Identifier: Apache-2.0
#include "spawn.hpp"

#include <spawn.h>
#include <unistd.h>

#include <csignal>

#include "base/failure.hpp"

namespace gpurx::gpurxd {

pid_t start_process(std::vector<std::string> command, int descriptor)
{
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (auto& argument : command)
        arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, descriptor, first_of_child);
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
