// SPDX-License-Identifier: Apache-2.0
//
// Receivers that have no rights at all, and gpurxd, which has one: what they receive through it.
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/syscalls.hpp"
#include "bed.hpp"
#include "child.hpp"
#include "container.hpp"
#include "daemon.hpp"
#include "lease/daemon_channel.hpp"
#include "lease/daemon_protocol.hpp"
#include "nic.hpp"
#include "session/session_state.hpp"
#include "unprivileged.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
namespace detail = gpurx::detail;

namespace {

// A program of its own, which has to end with 0.
std::function<void(child_report&)> runs(std::string const& command)
{
    return [=](child_report&) {
        drop_rights(false);
        ::execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
    };
}

// A directory in which anybody may write.
class open_directory {
  public:
    open_directory()
    {
        std::filesystem::create_directories(directory_);
        REQUIRE(::chmod(directory_.c_str(), 0777) == 0);
    }
    open_directory(open_directory const&) = delete;
    open_directory& operator=(open_directory const&) = delete;
    ~open_directory() { std::filesystem::remove_all(directory_); }

    [[nodiscard]] std::string path(std::string_view name) const { return directory_ / name; }
    [[nodiscard]] std::string content(std::string_view name) const
    {
        std::ifstream file{path(name), std::ios::binary};
        return {std::istreambuf_iterator<char>{file}, {}};
    }
    void write(std::string_view name, std::span<std::byte const> bytes) const
    {
        std::ofstream file{path(name), std::ios::binary};
        file.write(reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }

  private:
    std::filesystem::path directory_ = std::filesystem::temp_directory_path() / "gpurxd-files";
};

// Until this ends, the peer's NIC is one of this namespace's.
class second_nic {
  public:
    second_nic() { run_command("ip netns exec peer ip link set dms1 netns 1 && ip link set dms1 up"); }
    second_nic(second_nic const&) = delete;
    second_nic& operator=(second_nic const&) = delete;
    ~second_nic()
    {
        run_command(
            "ip link set dms1 netns peer && ip -n peer address add 10.77.0.2/24 dev dms1 && "
            "ip -n peer address add fd77::2/64 dev dms1 nodad && ip -n peer link set dms1 up");
    }
};

// What peer_sender is, on this side of the wire: for one receiver on the other. It holds on after the first mebibyte.
class near_sender {
  public:
    explicit near_sender(stream what) : what_{what}, listener_{listening_at(endpoint())}, thread_{[this] { run(); }} {}
    near_sender(near_sender const&) = delete;
    near_sender& operator=(near_sender const&) = delete;
    ~near_sender()
    {
        resume();
        ::shutdown(listener_.get(), SHUT_RDWR);
        thread_.join();
    }

    [[nodiscard]] static tcp::endpoint endpoint() { return {near_address(family::v4), 9605}; }
    [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
    void resume() noexcept { may_go_on_ = true; }

  private:
    void run() noexcept
    {
        detail::unique_fd const socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
        if (!socket || ::send(socket.get(), &what_.seed, sizeof what_.seed, MSG_NOSIGNAL | MSG_MORE) < 0)
            return;
        while (sent_ < what_.bytes) {
            if (sent_ >= mebibyte && !may_go_on_) {
                std::this_thread::sleep_for(1ms);
                continue;
            }
            auto const size = std::min<std::uint64_t>(256 << 10, what_.bytes - sent_);
            auto const count = ::send(socket.get(), pattern(what_.seed, sent_).data(), size, MSG_NOSIGNAL);
            if (count < 0)
                return;
            sent_ += static_cast<std::uint64_t>(count);
        }
        ::shutdown(socket.get(), SHUT_WR);
        char byte = 0;
        [[maybe_unused]] auto const end = ::recv(socket.get(), &byte, 1, 0);
    }

    stream what_;
    std::atomic<std::uint64_t> sent_{0};
    std::atomic<bool> may_go_on_{false};
    detail::unique_fd listener_;
    std::thread thread_;
};

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "a receiver without rights receives into device memory, by gpurxd", "[gpurxd]")
{
    running_daemon daemon;
    auto const how = GENERATE(way::read, way::loan);
    auto const own_user_namespace = GENERATE(false, true);
    CAPTURE(own_user_namespace);
    peer_sender sender{family::v4, {7, stream_bytes}};
    unprivileged_program receiver{receives_from(sender.endpoint(), how, own_user_namespace)};
    CHECK(receiver.succeeds());
    CHECK(pools_vanish());
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "a listener without rights is steered by gpurxd", "[gpurxd]")
{
    running_daemon daemon;
    tcp::endpoint const here{near_address(family::v4), 9601};
    peer_sender sender{here, {8, stream_bytes}};
    unprivileged_program receiver{receives_one(here)};
    CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "receive_file receives without rights, by gpurxd", "[gpurxd]")
{
    running_daemon daemon;
    tcp::endpoint const here{near_address(family::v4), 9604};
    open_directory const files;
    peer_sender sender{here, {15, stream_bytes}};
    unprivileged_program receiver{runs(fmt::format(
        "{} --interface {} --transport devmem --memory-size 8MiB --listen {}:{} --json --output {}", GPURX_RECEIVE_FILE,
        near_interface, here.address().to_string(), here.port(), files.path("received")))};
    CHECK(receiver.succeeds());
    auto const arrived = files.content("received");
    REQUIRE(arrived.size() == sizeof(std::uint64_t) + stream_bytes);
    pattern_check check{15};
    check.take(reinterpret_cast<std::uintptr_t>(arrived.data()) + sizeof(std::uint64_t), stream_bytes);
    CHECK(check.wrong_pieces() == 0);
    CHECK(settled(settings_before()));
}

#ifdef GPURX_TRAINING_INGEST
TEST_CASE_METHOD(unchanged_nic, "training_ingest receives without rights, by gpurxd", "[gpurxd]")
{
    running_daemon daemon;
    tcp::endpoint const here{near_address(family::v4), 9607};
    auto const where = fmt::format("{}:{}", here.address().to_string(), here.port());
    open_directory const files;
    unprivileged_program receiver{runs(
        fmt::format("{} --interface {} --transport devmem --memory-size 32MiB --listen {} --batch-size 100 --sha256 "
                    "--json >{}",
                    GPURX_TRAINING_INGEST, near_interface, where, files.path("report")))};
    auto const rows = pattern(16, 0).first(1000 * 1024);
    files.write("rows", rows);
    auto const hash = output_of("sha256sum " + files.path("rows")).substr(0, 64);
    run_command(fmt::format("ip netns exec peer {} --to {} --retry 60 --tensor x={}:U8:1024", GPURX_TENSOR_SOURCE,
                            where, files.path("rows")));
    CHECK(receiver.succeeds());
    auto const report = files.content("report");
    CAPTURE(report);
    CHECK(says(report, "set up by gpurxd"));
    CHECK(says(report, "\"rows\":1000,"));
    CHECK(says(report, fmt::format("\"x\":\"{}\"", hash)));
    CHECK(says(report, "\"host\":0"));
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}
#endif

TEST_CASE_METHOD(unchanged_nic, "a session of several memories has no rights, and gpurxd moves its flows", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 clients 2\n"};
    constexpr std::size_t flows = 8;
    constexpr std::uint64_t before_the_move = stream_bytes / 4 * 3;  // more than a socket holds
    tcp::endpoint const here{near_address(family::v4), 9606};
    unprivileged_program receiver{[&](child_report& child) {
        drop_rights(false);
        gpurx::rx_session session{
            {.interface = near_interface, .transport = gpurx::transport::devmem, .max_flows = flows},
            {gpurx::device_memory::on_host(32 * mebibyte), gpurx::device_memory::on_host(32 * mebibyte)}};
        auto const said = session.explain();
        child.expect(says(said, "set up by gpurxd"), said.c_str());
        asio::io_context context{1};
        gpurx::acceptor acceptor{context.get_executor(), session, here};
        std::vector<outcome> outcomes(flows);
        asio::co_spawn(
            context,
            [&]() -> asio::awaitable<void> {
                for (auto& result : outcomes) {
                    gpurx::receiver rx{context, session};
                    co_await acceptor.async_accept(rx);
                    asio::co_spawn(context, consume(std::move(rx), way::read, result), rethrow);
                }
            },
            rethrow);
        context.run();
        for (std::size_t i = 0; i < flows; ++i) {
            auto const text = fmt::format("flow {}: {}", i, fmt::streamed(outcomes[i]));
            auto const& stats = outcomes[i].stats;
            child.expect(intact(outcomes[i], stream_bytes) && stats.host_bytes == 0, text.c_str());
            // They take turns.
            child.expect(i % 2 == 0 ? stats.resteered_bytes == 0 : stats.device_bytes >= stream_bytes - before_the_move,
                         text.c_str());
        }
        auto const moved = session.part(1).stats();
        child.expect(moved.resteered_bytes > 0, "what came before a move is delivered");
    }};
    // The port's own rule, and one more for each flow that has to be moved.
    auto const rules_of_flows = [] {
        return std::ranges::count_if(matches_now(), [](auto const& match) { return match.remote.has_value(); });
    };
    CHECK(comes_true([] { return !matches_now().empty(); }));
    std::list<peer_sender> senders;
    for (std::size_t i = 0; i < flows; ++i)
        senders.emplace_back(here, stream{80 + i, stream_bytes}, before_the_move);
    CHECK(comes_true([&] { return rules_of_flows() == flows / 2; }));
    CHECK(journal_now().owners.size() == 2);
    for (auto& sender : senders)
        sender.resume();
    CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "a listener on every address is steered by gpurxd without rights", "[gpurxd]")
{
    running_daemon daemon;
    auto const version = GENERATE(family::v4, family::v6);
    tcp::endpoint const everywhere{tcp::v6(), 9603};
    peer_sender sender{tcp::endpoint{near_address(version), 9603}, {12, stream_bytes}};
    unprivileged_program receiver{receives_one(everywhere)};
    CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd passes over queues that are leased or reserved", "[gpurxd][lease]")
{
    if (auto const why = why_no_leases(); !why.empty())
        SKIP(why);
    running_daemon daemon;
    leased_queues const leased{{3}};
    run_command("ethtool -X dms0 equal 2");
    unprivileged_program receiver{[](child_report& child) {
        drop_rights(false);
        auto const session = open_session(8 * mebibyte, {.max_flows = 2});
        child.expect(session.queues() == std::vector<unsigned>{1}, "3 is leased, 2 is kept out of RSS");
    }};
    CHECK(receiver.succeeds());
    CHECK(comes_true([] { return journal_now().owners.empty(); }));
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd in a container gives its leased queue to those without rights",
                 "[gpurxd][lease]")
{
    if (auto const why = why_no_leases(); !why.empty())
        SKIP(why);
    tcp::endpoint const here{asio::ip::make_address(leased_address), 9602};
    leased_queues leased{{3}};
    leased.steer(here.port());
    peer_sender sender{here, {10, stream_bytes}};
    container one{rights::of_the_host, [&](child_report& child) {
                      running_daemon daemon{"allow user 65534 interface nk0 queues 1 memory 64MiB\n"};
                      unprivileged_program receiver{[&](child_report& inner) {
                          drop_rights(false);
                          gpurx::rx_session session{
                              {.interface = leased_interface, .transport = gpurx::transport::devmem, .max_flows = 2},
                              gpurx::device_memory::on_host(8 * mebibyte)};
                          auto const said = session.explain();
                          inner.expect(says(said, "set up by gpurxd"), said.c_str());
                          inner.expect(says(said, "steering: not possible here"), said.c_str());
                          receive_one(session, here, inner);
                      }};
                      auto const found = receiver.report();
                      child.expect(found.empty(), found.c_str());
                  }};
    one.enter(leased);
    auto const said = one.report();
    INFO(said);
    CHECK(said.empty());
}

TEST_CASE_METHOD(unchanged_nic, "several processes without rights share a NIC by gpurxd", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 clients 5\n"};
    std::list<peer_sender> senders;
    std::list<unprivileged_program> receivers;
    for (unsigned i = 0; i < 5; ++i) {
        auto& sender = senders.emplace_back(family::v4, stream{20 + i, stream_bytes});
        sender.pause_at(mebibyte);
        receivers.emplace_back(receives_from(sender.endpoint(), i % 2 == 0 ? way::read : way::loan));
    }
    // All of them at one time.
    CHECK(comes_true([&] { return std::ranges::all_of(senders, [](auto& one) { return one.sent() >= mebibyte; }); }));
    CHECK(journal_now().owners.size() == 5);
    for (auto& sender : senders)
        sender.resume();
    for (auto& receiver : receivers)
        CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "one gpurxd serves several NICs, and one process several sessions", "[gpurxd]")
{
    second_nic const other;
    running_daemon daemon{
        "allow user 65534 interface dms0 memory 8MiB\n"
        "allow user 65534 interface dms1 memory 4MiB\n"};
    unprivileged_program program{[&](child_report& child) {
        drop_rights(false);
        gpurx::rx_session_options options{.interface = "dms1", .transport = gpurx::transport::devmem, .max_flows = 1};
        auto const one = open_session(8 * mebibyte, {.max_flows = 2});
        gpurx::rx_session two{options, gpurx::device_memory::on_host(4 * mebibyte)};
        auto const said = two.explain();
        child.expect(said.find("dms1") != std::string::npos && said.find("set up by gpurxd") != std::string::npos,
                     said.c_str());
        for (auto const* const name : {"dms0", "dms1"}) {
            auto const line = fmt::format("\ngpurxd_clients{{interface=\"{}\",user=\"65534\"}} 1\n", name);
            child.expect(comes_true([&] { return says(daemon.page(), line); }), daemon.page().c_str());
        }
        // Limits are of an interface.
        try {
            gpurx::rx_session const third{options, gpurx::device_memory::on_host(4 * mebibyte)};
            child.expect(false, "the user's only place on dms1 is taken");
        } catch (gpurx::system_error const& error) {
            child.expect(error.code().value() == EUSERS, error.what());
        }
    }};
    CHECK(program.succeeds());
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "a process without rights receives on two NICs at once", "[gpurxd]")
{
    // The ends of the wire are in two network namespaces: so are a gpurxd for each, and a thread of the process.
    std::optional<running_daemon> far_daemon;
    std::thread{[&] {
        enter_peer_namespace();
        far_daemon.emplace("allow user 65534 interface dms1\n", "gpurxd-peer");
    }}.join();
    running_daemon const near_daemon;
    peer_sender sender{family::v4, {70, stream_bytes}};
    sender.pause_at(mebibyte);
    near_sender other{{71, stream_bytes}};
    unprivileged_program program{[&](child_report& child) {
        std::promise<void> is_there;
        std::promise<void> may_open;
        outcome far;
        std::string said;
        std::thread second{[&] {
            enter_peer_namespace();
            is_there.set_value();
            may_open.get_future().wait();
            gpurx::rx_session session{{.interface = "dms1", .transport = gpurx::transport::devmem, .max_flows = 2},
                                      gpurx::device_memory::on_host(8 * mebibyte)};
            said = session.explain();
            asio::io_context context{1};
            asio::co_spawn(context, connect_and_consume(session, near_sender::endpoint(), way::loan, far), rethrow);
            context.run();
        }};
        is_there.get_future().wait();
        drop_rights(false);
        auto session = open_session(8 * mebibyte, {.max_flows = 2});
        ::setenv("GPURXD_SOCKET", far_daemon->socket().c_str(), 1);  // NOLINT(concurrency-mt-unsafe): nobody reads it
        may_open.set_value();
        asio::io_context context{1};
        outcome near;
        asio::co_spawn(context, connect_and_consume(session, sender.endpoint(), way::read, near), rethrow);
        context.run();
        second.join();
        child.expect(says(said, "set up by gpurxd") && says(said, "dms1"), said.c_str());
        for (auto const* const result : {&near, &far}) {
            child.expect(intact(*result, stream_bytes), fmt::format("intact: {}", fmt::streamed(*result)).c_str());
            child.expect(result->stats.host_bytes == 0, "no byte arrived in host memory");
        }
    }};
    // Both are in the middle of it.
    CHECK(comes_true([&] { return sender.sent() >= mebibyte && other.sent() >= mebibyte; }));
    sender.resume();
    other.resume();
    CHECK(program.succeeds());
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "a receiver that goes to a network namespace of its own goes on receiving", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 clients 2\n"};
    peer_sender sender{family::v4, {40, stream_bytes}};
    unprivileged_program program{[&](child_report& child) {
        drop_rights(true);
        auto session = std::make_unique<gpurx::rx_session>(open_session(8 * mebibyte, {.max_flows = 2}));
        asio::io_context context{1};
        outcome result;
        auto const moves = [&]() -> asio::awaitable<void> {
            gpurx::receiver rx{co_await asio::this_coro::executor, *session};
            co_await rx.async_connect(sender.endpoint());
            child.expect(::unshare(CLONE_NEWNET) == 0, "a network namespace of its own");
            co_await consume(std::move(rx), way::read, result);
        };
        asio::co_spawn(context, moves(), rethrow);
        context.run();
        // The data path asks nobody where this thread is.
        child.expect(intact(result, stream_bytes), fmt::format("intact: {}", fmt::streamed(result)).c_str());
        child.expect(result.stats.host_bytes == 0, "no byte arrived in host memory");

        // The daemon is found by its file, and knows its own interfaces; sockets made here are of another namespace.
        detail::daemon_channel channel{daemon.socket(), 60s};
        auto const memory = gpurx::device_memory::on_host(8 * mebibyte);
        auto const state = gpurx::detail::session_access::state(memory);
        child.expect(was_opened(answer_to(channel, detail::open_request{near_interface, 1, 0}, state->dmabuf_fd())),
                     "queues of an interface that is elsewhere");
        detail::unique_fd const here{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        tcp::endpoint const any{asio::ip::address_v4::any(), 9801};
        child.expect(::bind(here.get(), any.data(), static_cast<socklen_t>(any.size())) == 0, "a port here");
        child.expect(refuses(answer_to(channel, detail::steer_port_request{any, false}, here.get()), EXDEV),
                     "no flow of another network namespace");
        try {
            auto const none = open_session(8 * mebibyte, {.max_flows = 2});
            child.expect(false, "the interface is not to be seen from here");
        } catch (gpurx::system_error const& error) {
            child.expect(std::string_view{error.what()}.find("dms0") != std::string_view::npos, error.what());
            fmt::print(stderr, "from a network namespace of its own: {}\n", error.what());
        }
        session.reset();
    }};
    CHECK(program.succeeds());
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}
