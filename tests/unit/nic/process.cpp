// SPDX-License-Identifier: Apache-2.0
#include "nic/process.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <vector>

using namespace gpurx::detail;
using Catch::Matchers::EndsWith;

namespace {

std::string stat_line(std::string const& name, char state, unsigned threads, unsigned long start)
{
    return "1234 (" + name + ") " + state + " 1 1 1 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 " + std::to_string(threads) +
           " 0 " + std::to_string(start) + " 1000 200 18446744073709551615 1 1 0\n";
}

}  // namespace

TEST_CASE("a process's state, threads and start time are read")
{
    CHECK(parse_process_stat(stat_line("bash", 'S', 1, 567890)) == process_stat{'S', 1, 567890});
}

TEST_CASE("a program may be called anything")
{
    for (std::string const name : {"a b", "a) Z 9", ") (", "((", "", "Z 1 1 1"})
        CHECK(parse_process_stat(stat_line(name, 'R', 7, 42)) == process_stat{'R', 7, 42});
}

TEST_CASE("a line that is no process is none")
{
    CHECK_FALSE(parse_process_stat(""));
    CHECK_FALSE(parse_process_stat("1234 (bash"));
    CHECK_FALSE(parse_process_stat("1234 (bash) S 1 1"));
    auto line = stat_line("bash", 'S', 1, 5);
    CHECK_FALSE(parse_process_stat(line.substr(0, line.find(" 1000 200"))));
    CHECK_FALSE(parse_process_stat(stat_line("bash", 'S', 1, 5).replace(line.find(" 5 1000"), 2, " x")));
}

TEST_CASE("a zombie is dead unless it has living threads")
{
    CHECK(process_stat{'S', 1, 0}.alive());
    CHECK(process_stat{'D', 1, 0}.alive());
    CHECK_FALSE(process_stat{'Z', 1, 0}.alive());
    CHECK_FALSE(process_stat{'X', 1, 0}.alive());
    CHECK(process_stat{'Z', 2, 0}.alive());
}

TEST_CASE("this process lives, and no other process by its number")
{
    auto key = this_process(1);
    CHECK(key.pid == ::getpid());
    CHECK(key.session == 1);
    CHECK(is_alive(key) == true);
    key.start_time += 1;  // an earlier owner of the number
    CHECK(is_alive(key) == false);
}

TEST_CASE("a process that has ended is dead before it is waited for")
{
    int pipe_ends[2];
    REQUIRE(::pipe(pipe_ends) == 0);
    pid_t const child = ::fork();
    if (child == 0) {
        char byte = 0;
        static_cast<void>(::read(pipe_ends[0], &byte, 1) == 0);
        ::_exit(0);
    }
    auto key = this_process(1);
    key.pid = child;
    // A child's start time is its own.
    auto const start_of = [](pid_t pid) {
        auto const path = "/proc/" + std::to_string(pid) + "/stat";
        FILE* const file = ::fopen(path.c_str(), "re");
        REQUIRE(file != nullptr);
        char text[1024]{};
        static_cast<void>(::fread(text, 1, sizeof(text) - 1, file));
        ::fclose(file);
        return parse_process_stat(text).value().start_time;
    };
    key.start_time = start_of(child);
    CHECK(is_alive(key) == true);
    REQUIRE(::write(pipe_ends[1], "x", 1) == 1);
    siginfo_t info{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);  // a zombie now
    CHECK(is_alive(key) == false);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    CHECK(is_alive(key) == false);
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
}

TEST_CASE("whether a process of another pid namespace lives cannot be told")
{
    auto key = this_process(1);
    key.pid = 999999999;
    CHECK(is_alive(key) == false);
    key.pid_namespace += 1;
    CHECK(is_alive(key) == std::nullopt);
}

TEST_CASE("the boot and the network namespace have names", "[native]")
{
    CHECK(boot_id().size() == 36);
    CHECK(boot_id() == boot_id());
    CHECK(network_namespace() != 0);
    CHECK(network_namespace() == network_namespace());
}

TEST_CASE("of many interfaces the first are named")
{
    std::vector<std::string> names{"lo"};
    CHECK(advice_on_interfaces(names) == "interfaces in this network namespace: lo");
    for (int i = 1; i < 16; ++i)
        names.push_back("veth" + std::to_string(i));
    CHECK_THAT(advice_on_interfaces(names), EndsWith("veth14, veth15"));
    names.insert(names.end(), 300, "more");
    CHECK_THAT(advice_on_interfaces(names), EndsWith("veth14, veth15, and 300 more"));
    CHECK(advice_on_interfaces({}).empty());
}
