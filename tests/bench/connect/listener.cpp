// SPDX-License-Identifier: Apache-2.0
#include "listener.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <vector>

namespace bench {

namespace {

[[noreturn]] void die(char const* what)
{
    std::fprintf(stderr, "listener: %s: %s\n", what, std::strerror(errno));
    std::_Exit(1);
}

int listen_on(std::string const& network_namespace, std::string const& address, std::uint16_t port)
{
    int const place = ::open(("/run/netns/" + network_namespace).c_str(), O_RDONLY | O_CLOEXEC);
    if (place < 0 || ::setns(place, CLONE_NEWNET) != 0)
        die(network_namespace.c_str());
    int const fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_port = htons(port);
    if (fd < 0 || ::inet_pton(AF_INET, address.c_str(), &own.sin_addr) != 1 ||
        ::bind(fd, reinterpret_cast<sockaddr const*>(&own), sizeof own) != 0 || ::listen(fd, 64) != 0)
        die("listen");
    return fd;
}

[[noreturn]] void serve(int listening)
{
    std::vector<pollfd> all{{listening, POLLIN, 0}};
    for (;;) {
        if (::poll(all.data(), all.size(), -1) < 0)
            die("poll");
        for (std::size_t i = all.size(); i-- > 1;) {
            if (all[i].revents == 0)
                continue;
            ::close(all[i].fd);  // nobody sends here: it is the end
            all[i] = all.back();
            all.pop_back();
        }
        if (all[0].revents != 0)
            all.push_back({::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC), POLLIN, 0});
    }
}

}  // namespace

listener::listener(std::string const& network_namespace, std::string const& address, std::uint16_t port)
{
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0)
        throw std::system_error{errno, std::generic_category(), "pipe"};
    child_ = ::fork();
    if (child_ < 0)
        throw std::system_error{errno, std::generic_category(), "fork"};
    if (child_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        int const fd = listen_on(network_namespace, address, port);
        ::close(ready[1]);
        serve(fd);
    }
    ::close(ready[1]);
    char byte = 0;
    [[maybe_unused]] auto const end = ::read(ready[0], &byte, 1);
    ::close(ready[0]);
}

listener::~listener()
{
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
}

}  // namespace bench
