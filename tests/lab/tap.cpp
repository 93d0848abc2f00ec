// SPDX-License-Identifier: Apache-2.0
//
// gpurx-doctor tap on dms0: what it says of flows that go to device memory, beside what the receiver counts and what
// devmemsim was told to do wrong.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/json.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "base/syscalls.hpp"
#include "bed.hpp"
#include "eventually.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
using gpurx::test::eventually;
namespace detail = gpurx::detail;

namespace {

// Whether a packet socket sees packets: it has long been there when it is bound.
bool is_tapped()
{
    std::ifstream file{"/proc/net/packet"};
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
        std::istringstream fields{line};
        std::string skipped;
        int running = 0;
        for (int i = 0; i < 5; ++i)
            fields >> skipped;
        if (fields >> running && running == 1)
            return true;
    }
    return false;
}

// The tap, from the moment that it sees packets.
class tapping {
  public:
    explicit tapping(std::vector<std::string> const& more = {}) : output_{::memfd_create("stdout", MFD_CLOEXEC)}
    {
        std::vector<std::string> command{GPURX_DOCTOR, "tap", near_interface, "--json"};
        command.insert(command.end(), more.begin(), more.end());
        std::vector<char*> arguments;
        arguments.reserve(command.size() + 1);
        for (auto& argument : command)
            arguments.push_back(argument.data());
        arguments.push_back(nullptr);
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_adddup2(&actions, output_.get(), STDOUT_FILENO);
        auto const error = ::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
        ::posix_spawn_file_actions_destroy(&actions);
        REQUIRE(error == 0);
        REQUIRE(eventually(is_tapped));
    }
    tapping(tapping const&) = delete;
    tapping& operator=(tapping const&) = delete;
    ~tapping()
    {
        if (pid_ > 0)
            static_cast<void>(end(SIGKILL));
    }

    void signal(int number) const { REQUIRE(::kill(pid_, number) == 0); }

    // Its totals.
    [[nodiscard]] boost::json::value stop()
    {
        REQUIRE(end(SIGINT) == 0);
        std::string text(1 << 16, '\0');
        auto const size = ::pread(output_.get(), text.data(), text.size(), 0);
        text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
        UNSCOPED_INFO(text);
        return boost::json::parse(text);
    }

  private:
    int end(int number)
    {
        int status = 0;
        ::kill(pid_, number);
        ::waitpid(pid_, &status, 0);
        pid_ = -1;
        return status;
    }

    detail::unique_fd output_;
    pid_t pid_ = -1;
};

std::uint64_t count(boost::json::value const& from, char const* what)
{
    return from.at(what).to_number<std::uint64_t>();
}

// A session that listens, and one flow to it.
class listening {
  public:
    explicit listening(family version = family::v4)
        : session_{open_session(32 * mebibyte, {.max_flows = 2})},
          acceptor_{listen_on(session_, context_.get_executor(), version)}
    {}

    [[nodiscard]] tcp::endpoint endpoint() const { return acceptor_.local_endpoint(); }
    [[nodiscard]] outcome receive(std::uint64_t bytes)
    {
        outcome result;
        peer_sender const sender{endpoint(), {7, bytes}};
        asio::co_spawn(context_, accept_one(result), rethrow);
        context_.restart();
        context_.run();
        CHECK(intact(result, bytes));
        return result;
    }
    // That of the flow among what the tap saw.
    [[nodiscard]] boost::json::value flow(boost::json::value const& totals) const
    {
        auto const local = fmt::format("{}:{}",
                                       endpoint().address().is_v6() ? "[" + endpoint().address().to_string() + "]"
                                                                    : endpoint().address().to_string(),
                                       endpoint().port());
        for (auto const& one : totals.at("flows").as_array()) {
            if (one.at("local").as_string() == local)
                return one;
        }
        FAIL("the tap saw no flow to " << local);
        return {};
    }

  private:
    asio::awaitable<void> accept_one(outcome& result)
    {
        auto socket = co_await acceptor_.async_accept(asio::use_awaitable);
        co_await consume(gpurx::receiver{context_, session_, std::move(socket)}, way::read, result);
    }

    gpurx::rx_session session_;
    asio::io_context context_{1};
    tcp::acceptor acceptor_;
};

// As GRO makes them.
constexpr std::uint64_t largest_packet = 64 << 10;

// A file in the guest's temporary directory.
class temporary_file {
  public:
    temporary_file()
        : name_{(std::filesystem::temp_directory_path() / fmt::format("tap-{}.pcapng", ::getpid())).string()}
    {}
    temporary_file(temporary_file const&) = delete;
    temporary_file& operator=(temporary_file const&) = delete;
    ~temporary_file() { ::unlink(name_.c_str()); }

    [[nodiscard]] std::string const& name() const noexcept { return name_; }

  private:
    std::string name_;
};

// Nothing is lost, but a sender whose acknowledgements are slow probes with what it has sent before.
void check_bytes(boost::json::value const& flow, std::uint64_t received)
{
    auto const probes = count(flow, "retransmitted");
    REQUIRE(count(flow, "bytes") >= received);
    auto const twice = count(flow, "bytes") - received;
    CAPTURE(probes, twice);
    CHECK((twice > 0) == (probes > 0));
    CHECK(twice <= probes * largest_packet);
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "the tap sees the flows of sessions, and no other", "[tap]")
{
    for (auto const version : {family::v4, family::v6}) {
        listening bed{version};
        temporary_file const file;
        tapping tap{{"--write", file.name()}};
        run_command("ping -c 1 -W 5 10.77.0.2 >/dev/null || true");
        auto const result = bed.receive(8 * mebibyte);
        auto const totals = tap.stop();
        CHECK(totals.at("flows").as_array().size() == 1);
        auto const flow = bed.flow(totals);
        check_bytes(flow, result.stats.bytes());
        CHECK(count(flow, "gaps") == 0);
        CHECK(count(flow, "out_of_order") == 0);
        CHECK(count(flow, "unsplit") == 0);
        CHECK(count(flow, "sent") > 0);
        CHECK(count(flow, "window") > 0);
        CHECK(flow.at("window_scaled").as_bool());
        CHECK(count(totals, "dropped") == 0);
        CHECK(count(totals, "odd") == 0);

        auto const read = boost::json::parse(output_of(fmt::format("python3 {} {}", GPURX_PCAPNG, file.name())));
        CHECK(count(read, "packets") == count(totals, "packets"));
        CHECK(count(read, "with_payload") == 0);
        CHECK(count(read, "bytes_in") == count(flow, "bytes"));
        CHECK(count(read, "out") == count(flow, "sent"));
    }
}

TEST_CASE_METHOD(unchanged_nic, "the tap sees flows that sessions begin while it runs", "[tap]")
{
    listening first;
    temporary_file const file;
    tapping tap{{"--write", file.name()}};
    auto const written = [&file] {
        std::error_code none;
        auto const size = std::filesystem::file_size(file.name(), none);
        return none ? 0 : size;
    };
    REQUIRE(eventually([&] { return written() > 0; }));
    auto const head = written();
    listening bed;
    // The tap looks at the sessions before it writes what it has seen: this is of a flow that came after `bed`.
    static_cast<void>(first.receive(4096));
    REQUIRE(eventually([&] { return written() > head; }));
    auto const result = bed.receive(2 * mebibyte);
    check_bytes(bed.flow(tap.stop()), result.stats.bytes());
}

TEST_CASE_METHOD(unchanged_nic, "the tap counts losses and retransmissions", "[tap]")
{
    listening bed;
    tapping tap{{"--port", std::to_string(bed.endpoint().port())}};
    std::uint64_t lost = 0;
    {
        nic_fault const fault{"drop", 37};
        static_cast<void>(bed.receive(16 * mebibyte));
        lost = fault.injected();
    }
    auto const flow = bed.flow(tap.stop());
    REQUIRE(lost > 0);
    CHECK(count(flow, "gaps") > 0);
    CHECK(count(flow, "gaps") <= lost);
    // What is lost again comes again once. What a sender sends in vain counts, too.
    CHECK(count(flow, "retransmitted") >= count(flow, "gaps"));
    CHECK(count(flow, "out_of_order") <= count(flow, "retransmitted") / 4);
    CHECK(count(flow, "missing") == 0);
    CHECK(count(flow, "unseen") == 0);
}

TEST_CASE_METHOD(unchanged_nic, "the tap counts duplicate and late segments", "[smoke][tap]")
{
    listening bed;
    SECTION("twice")
    {
        tapping tap;
        nic_fault const fault{"duplicate", 5};
        static_cast<void>(bed.receive(8 * mebibyte));
        auto const twice = fault.injected();
        auto const flow = bed.flow(tap.stop());
        // Of those without payload nothing is seen.
        CHECK(count(flow, "retransmitted") + 4 >= twice);
        CHECK(count(flow, "gaps") == 0);
    }
    SECTION("late")
    {
        tapping tap;
        nic_fault const fault{"reorder", 23};
        static_cast<void>(bed.receive(16 * mebibyte));
        auto const flow = bed.flow(tap.stop());
        CHECK(count(flow, "gaps") > 0);
        CHECK(count(flow, "out_of_order") > 0);
        CHECK(count(flow, "missing") == 0);
    }
}

TEST_CASE_METHOD(unchanged_nic, "the tap counts packets that the NIC did not split", "[tap]")
{
    listening bed;
    tapping tap;
    SECTION("not at all")
    {
        nic_fault const fault{"no_split", 7};
        auto const result = bed.receive(8 * mebibyte);
        auto const flow = bed.flow(tap.stop());
        CHECK(result.stats.host_bytes > 0);
        CHECK(count(flow, "unsplit") == fault.injected());
        CHECK(count(flow, "unsplit_bytes") == result.stats.host_bytes);
    }
    SECTION("in part")
    {
        // zcrx loses a flow whose linear payload GRO has put behind pages.
        without_gro const frames{false, lab_transport() == gpurx::transport::zcrx};
        nic_fault const fault{"linear_bytes", 100};
        auto const result = bed.receive(8 * mebibyte);
        auto const flow = bed.flow(tap.stop());
        CHECK(result.stats.linear_bytes > 0);
        // The kernel's GRO makes one packet of several.
        CHECK(count(flow, "unsplit") > 0);
        CHECK(count(flow, "unsplit") <= fault.injected());
    }
}

TEST_CASE_METHOD(unchanged_nic, "the tap counts its drops, and no flow suffers", "[tap]")
{
    without_gro const frames{true, true};  // each frame is a packet
    listening bed;
    tapping tap{{"--buffer", "128KiB"}};
    tap.signal(SIGSTOP);
    auto const result = bed.receive(16 * mebibyte);
    tap.signal(SIGCONT);
    auto const totals = tap.stop();
    CHECK(count(totals, "dropped") > 0);
    CHECK(count(totals, "packets") > count(totals, "dropped"));
    CHECK(count(bed.flow(totals), "bytes") < result.stats.bytes());
}
