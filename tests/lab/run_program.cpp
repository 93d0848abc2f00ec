// SPDX-License-Identifier: Apache-2.0
//
// Programs without rights that gpurx-run starts: this one again, with one of the hidden cases.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bed.hpp"
#include "eventually.hpp"
#include "nic.hpp"
#include "nic/process.hpp"
#include "unprivileged.hpp"

namespace gpurx::lab {

namespace {

using Catch::Matchers::ContainsSubstring;

constexpr char there_variable[] = "GPURX_LAB_THERE";

rx_session_options over_zcrx()
{
    return {.interface = near_interface, .transport = transport::zcrx, .max_flows = 2};
}

// A sender of the test that started this.
tcp::endpoint there(std::size_t which = 0)
{
    auto const* const ports = std::getenv(there_variable);  // NOLINT(concurrency-mt-unsafe): only read
    REQUIRE(ports != nullptr);
    std::istringstream words{ports};
    std::uint16_t port = 0;
    for (std::size_t i = 0; i <= which; ++i)
        REQUIRE(words >> port);
    return {far_address(family::v4), port};
}

outcome receive_from(rx_session& session, tcp::endpoint const& from)
{
    asio::io_context io{1};
    outcome result;
    asio::co_spawn(io, connect_and_consume(session, from, way::loan, result), rethrow);
    io.run();
    return result;
}

// gpurx-run, and the program that it has started.
class started {
  public:
    started(std::string const& hidden_case, std::string const& ports)
    {
        REQUIRE(::chmod("/dev/udmabuf", 0666) == 0);
        // NOLINTNEXTLINE(concurrency-mt-unsafe): senders do not read it
        REQUIRE(::setenv(there_variable, ports.c_str(), 1) == 0);
        std::vector<std::string> command{GPURX_RUN, "--interface", near_interface, "--threads", "1", "--user", "65534",
                                         "--", std::filesystem::read_symlink("/proc/self/exe"), hidden_case,
                                         // The runner takes totals in another form for those of the step.
                                         "--reporter", "xml"};
        std::vector<char*> arguments;
        for (auto& word : command)
            arguments.push_back(word.data());
        arguments.push_back(nullptr);
        REQUIRE(::posix_spawn(&pid_, arguments[0], nullptr, nullptr, arguments.data(), environ) == 0);
    }
    started(started const&) = delete;
    started& operator=(started const&) = delete;
    ~started()
    {
        if (pid_ > 0) {
            kill(SIGKILL);
            static_cast<void>(wait());
        }
        ::chmod("/dev/udmabuf", 0600);
    }

    void kill(int signal) const { ::kill(pid_, signal); }
    // The status that it ends with; of a signal, 128 more than its number.
    [[nodiscard]] int wait()
    {
        int status = 0;
        ::waitpid(std::exchange(pid_, -1), &status, 0);
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }

  private:
    pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("inherits and receives", "[.][inherits-receives]")
{
    CHECK_FALSE(detail::may_configure_nics());
    CHECK(::geteuid() == unknown_user);
    auto const memory = device_memory::on_host(8 * mebibyte);
    rx_session session{over_zcrx(), memory};
    CHECK_THAT(session.explain(), ContainsSubstring("set up by gpurx-run"));
    auto const result = receive_from(session, there());
    CHECK(intact(result, stream_bytes));
    CHECK(result.stats.host_bytes == 0);
    // The only ring is this thread's.
    std::thread{[&] {
        CHECK(receive_from(session, there(1)).error == error_code(EPERM, boost::system::system_category()));
    }}.join();
    error_code code;
    diagnostics why;
    CHECK_FALSE(rx_session::open(over_zcrx(), device_memory::on_host(8 * mebibyte), code, why));
    CHECK_THAT(describe(code, why), ContainsSubstring("gpurx-run hands on one queue"));
}

TEST_CASE("inherits and waits", "[.][inherits-waits]")
{
    // Catch2's handler allocates, and would wait for ever if the signal came within an allocation.
    ::signal(SIGTERM, SIG_DFL);
    rx_session session{over_zcrx(), device_memory::on_host(8 * mebibyte)};
    static_cast<void>(receive_from(session, there()));
}

TEST_CASE_METHOD(unchanged_nic, "a program without rights receives over the queue that gpurx-run hands on", "[run]")
{
    peer_sender const first{family::v4, {1, stream_bytes}};
    peer_sender const second{family::v4, {2, stream_bytes}};
    started program{"[inherits-receives]", fmt::format("{} {}", first.endpoint().port(), second.endpoint().port())};
    CHECK(program.wait() == 0);
}

TEST_CASE_METHOD(unchanged_nic, "gpurx-run restores the NIC after a program that was killed", "[run]")
{
    peer_sender sender{family::v4, {2, stream_bytes}};
    sender.pause_at(mebibyte);
    started program{"[inherits-waits]", std::to_string(sender.endpoint().port())};
    REQUIRE(test::eventually([&] { return sender.sent() >= mebibyte; }));
    CHECK(journal_now().owners.size() == 1);
    program.kill(SIGTERM);  // which is passed on
    CHECK(program.wait() == 128 + SIGTERM);
    CHECK(journal_now().owners.empty());
}

TEST_CASE_METHOD(unchanged_nic, "a killed gpurx-run ends its program, and recover() restores the NIC", "[run]")
{
    peer_sender sender{family::v4, {3, stream_bytes}};
    sender.pause_at(mebibyte);
    started program{"[inherits-waits]", std::to_string(sender.endpoint().port())};
    REQUIRE(test::eventually([&] { return sender.sent() >= mebibyte; }));
    program.kill(SIGKILL);
    CHECK(program.wait() == 128 + SIGKILL);
    CHECK(test::eventually([] {
        auto const queues = detail::kernel_nic{near_interface}.rx_queues();
        return std::ranges::none_of(queues, [](auto const& one) { return one.io_uring; });
    }));
    CHECK(journal_now().owners.size() == 1);
    CHECK_FALSE(rx_session::recover(near_interface, "/run/gpurx").empty());
    CHECK(journal_now().owners.empty());
}

}  // namespace gpurx::lab
