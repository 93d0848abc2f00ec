// SPDX-License-Identifier: Apache-2.0
//
// What a process that has given up everything may still do: children of this test try.
#include "rights.hpp"

#include <linux/netlink.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <exception>
#include <fstream>
#include <string>

using namespace gpurx::gpurxd;

namespace {

bool kernel_has_seccomp()
{
    std::ifstream status{"/proc/self/status"};
    for (std::string word; status >> word;) {
        if (word == "Seccomp:")
            return true;
    }
    return false;
}

// What `call` failed with in a child that has given up everything; 0: it did not fail.
template <class Call>
int error_without_rights(Call call)
{
    auto const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        try {
            keep_nothing();
        } catch (std::exception const&) {
            ::_exit(255);
        }
        errno = 0;
        ::_exit(call() ? 0 : errno);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

TEST_CASE("who has given up everything reaches no other process, be it root's or its own", "[native]")
{
    if (!kernel_has_seccomp())
        SKIP("this kernel has no seccomp");
    CHECK(error_without_rights([] { return ::kill(::getppid(), 0) == 0; }) == EPERM);
    CHECK(error_without_rights([] { return ::ptrace(PTRACE_SEIZE, ::getppid(), nullptr, nullptr) == 0; }) == EPERM);
    CHECK(error_without_rights([] { return ::execl("/bin/true", "true", nullptr) == 0; }) == EPERM);
    CHECK(error_without_rights([] { return ::socket(AF_UNIX, SOCK_STREAM, 0) >= 0; }) == EPERM);
    CHECK(error_without_rights([] {
              int ends[2];
              return ::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0;
          }) == EPERM);
    CHECK(error_without_rights([] {
              rlimit limit{};
              return ::prlimit(::getppid(), RLIMIT_NOFILE, nullptr, &limit) == 0;
          }) == EPERM);
    int const before = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(error_without_rights([before] {
              sockaddr_in there{};
              there.sin_family = AF_INET;
              there.sin_port = htons(1);
              there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
              return ::connect(before, reinterpret_cast<sockaddr*>(&there), sizeof there) == 0;
          }) == EPERM);
    ::close(before);
}

TEST_CASE("who has given up everything can still ask the kernel of NICs", "[native]")
{
    CHECK(error_without_rights([] { return ::socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC) >= 0; }) == 0);
    CHECK(error_without_rights([] { return ::socket(AF_INET, SOCK_DGRAM, 0) >= 0; }) == 0);
    CHECK(error_without_rights([] {
              rlimit limit{};
              return ::prlimit(0, RLIMIT_NOFILE, nullptr, &limit) == 0;
          }) == 0);
}
