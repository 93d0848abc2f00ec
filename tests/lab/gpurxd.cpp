// SPDX-License-Identifier: Apache-2.0
//
// Receivers that have no rights at all, and gpurxd, which has one: what they get through it, what they do not get, and
// what is left when either is killed.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/dma-heap.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
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

using namespace gpurx::lab;
using namespace std::chrono_literals;
using gpurx::test::child_report;
namespace detail = gpurx::detail;

namespace {

constexpr uid_t stranger = 65534;
constexpr std::uint64_t stream_bytes = 4 * mebibyte;

void drop_rights(bool own_user_namespace, uid_t user = stranger)
{
    if (::setgroups(0, nullptr) != 0 || ::setgid(user) != 0 || ::setuid(user) != 0)
        throw std::runtime_error{"cannot become nobody"};
    // Else its files in /proc are root's.
    ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    if (own_user_namespace && ::unshare(CLONE_NEWUSER) != 0)
        throw std::runtime_error{"cannot have a user namespace"};
}

// A program of a user without rights: a child that runs `body` and reports what it found wrong.
class nobodys_program {
  public:
    template <class Body>
    explicit nobodys_program(Body body)
    {
        int ends[2];
        REQUIRE(::pipe(ends) == 0);
        reads_.reset(ends[0]);
        detail::unique_fd writes{ends[1]};
        pid_ = ::fork();
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            ::signal(SIGALRM, SIG_DFL);
            ::alarm(120);
            child_report report;
            try {
                body(report);
            } catch (std::exception const& failure) {
                report.expect(false, failure.what());
            }
            auto const& text = report.text();
            [[maybe_unused]] auto const written = ::write(writes.get(), text.data(), text.size());
            ::_exit(0);
        }
    }
    nobodys_program(nobodys_program const&) = delete;
    nobodys_program& operator=(nobodys_program const&) = delete;
    ~nobodys_program() { kill(); }

    void kill()
    {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            ::waitpid(std::exchange(pid_, -1), nullptr, 0);
        }
    }
    // Waits for its end.
    [[nodiscard]] std::string report()
    {
        std::string text;
        char part[512];
        for (ssize_t count = 0; (count = ::read(reads_.get(), part, sizeof part)) > 0;)
            text.append(part, static_cast<std::size_t>(count));
        int status = 0;
        ::waitpid(std::exchange(pid_, -1), &status, 0);
        if (WIFSIGNALED(status))
            text += fmt::format("ended by signal {}\n", WTERMSIG(status));
        else if (WEXITSTATUS(status) != 0)
            text += fmt::format("ended with status {}\n", WEXITSTATUS(status));
        return text;
    }

    // The same, and says what was wrong.
    [[nodiscard]] bool succeeds()
    {
        auto const text = report();
        fmt::print(stderr, "{}", text);
        return text.empty();
    }

  private:
    detail::unique_fd reads_;
    pid_t pid_ = -1;
};

// What it does: a session of its own, one connection to the peer, every byte compared.
std::function<void(child_report&)> receives_from(tcp::endpoint there, way how, bool own_user_namespace = false,
                                                 bool may_reach_host = false, std::uint64_t bytes = stream_bytes)
{
    return [=](child_report& child) {
        drop_rights(own_user_namespace);
        auto session = open_session(8 * mebibyte, {.max_flows = 2});
        auto const said = session.explain();
        child.expect(said.find("set up by gpurxd") != std::string::npos, said.c_str());
        asio::io_context context{1};
        outcome result;
        asio::co_spawn(context, connect_and_consume(session, there, how, result), rethrow);
        context.run();
        child.expect(intact(result, bytes), fmt::format("intact: {}", fmt::streamed(result)).c_str());
        child.expect(may_reach_host || result.stats.host_bytes == 0, "no byte arrived in host memory");
        child.expect(session.pool_stats().has_value(), "the pool can be looked at");
    };
}

// Takes one connection at `here`, every byte compared.
void receive_one(gpurx::rx_session& session, tcp::endpoint const& here, child_report& child)
{
    asio::io_context context{1};
    gpurx::acceptor acceptor{context.get_executor(), session, here};
    outcome result;
    asio::co_spawn(
        context,
        [&]() -> asio::awaitable<void> {
            auto rx = co_await acceptor.async_accept(asio::use_awaitable);
            co_await consume(std::move(rx), way::read, result);
        },
        rethrow);
    context.run();
    child.expect(intact(result, stream_bytes), fmt::format("intact: {}", fmt::streamed(result)).c_str());
    child.expect(result.stats.host_bytes == 0, "no byte arrived in host memory");
}

// What it does: a session of its own, with two queues, and one connection at `here`.
std::function<void(child_report&)> receives_one(tcp::endpoint const& here)
{
    return [=](child_report& child) {
        drop_rights(false);
        auto session = open_session(8 * mebibyte, {.rx_queues = 2, .max_flows = 2});
        receive_one(session, here, child);
    };
}

// A program of its own, which has to end with 0.
std::function<void(child_report&)> runs(std::string const& command)
{
    return [=](child_report&) {
        drop_rights(false);
        ::execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
    };
}

// A directory in which anybody may write.
class nobodys_files {
  public:
    nobodys_files()
    {
        std::filesystem::create_directories(directory_);
        REQUIRE(::chmod(directory_.c_str(), 0777) == 0);
    }
    nobodys_files(nobodys_files const&) = delete;
    nobodys_files& operator=(nobodys_files const&) = delete;
    ~nobodys_files() { std::filesystem::remove_all(directory_); }

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

// A message that no client of ours sends, and the daemon's answer; empty: it hung up.
std::optional<detail::daemon_reply> answer_to(detail::daemon_channel& channel, detail::daemon_request const& what,
                                              int descriptor)
{
    channel.send(detail::encode(what), descriptor);
    for (;;) {
        auto const message = channel.receive();
        if (!message)
            return std::nullopt;
        auto const parsed = detail::parse_daemon_reply(message->bytes);
        auto const& reply = std::get<detail::daemon_reply>(parsed);
        if (!std::holds_alternative<detail::notice_reply>(reply))
            return reply;
    }
}

bool refuses(std::optional<detail::daemon_reply> const& reply, int error)
{
    auto const* const refused = reply ? std::get_if<detail::refused_reply>(&*reply) : nullptr;
    return refused != nullptr && refused->code.value() == error;
}

enum class binding { plain, of_any_address };

detail::unique_fd listening_at(tcp::endpoint const& here, binding how = binding::plain)
{
    detail::unique_fd socket{::socket(here.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0)};
    int const yes = 1;
    if (how == binding::of_any_address)
        ::setsockopt(socket.get(), IPPROTO_IP, IP_FREEBIND, &yes, sizeof yes);
    if (::bind(socket.get(), here.data(), static_cast<socklen_t>(here.size())) != 0 || ::listen(socket.get(), 4) != 0)
        throw std::runtime_error{"cannot listen"};
    return socket;
}

detail::unique_fd listening_on(std::uint16_t port)
{
    return listening_at({near_address(family::v4), port});
}

bool says(std::string const& page, std::string_view line)
{
    return page.find(line) != std::string::npos;
}

std::uint64_t refusals(std::string const& page, std::string_view request, std::string_view reason)
{
    auto const line = fmt::format("\ngpurxd_refusals_total{{request=\"{}\",reason=\"{}\"}} ", request, reason);
    auto const at = page.find(line);
    REQUIRE(at != std::string::npos);
    return std::stoull(page.substr(at + line.size()));
}

bool was_steered(std::optional<detail::daemon_reply> const& reply)
{
    return reply && std::holds_alternative<detail::steered_reply>(*reply);
}

// Of the rules that the NIC has now. Everybody may ask.
std::vector<detail::flow_match> matches_now()
{
    std::vector<detail::flow_match> all;
    for (auto const& one : detail::kernel_nic{near_interface}.rules()) {
        if (one.rule)
            all.push_back(one.rule->match);
    }
    return all;
}

// A set of capabilities of a process, as /proc has it; 0: there is no such process.
std::uint64_t rights_of(pid_t pid, std::string const& which)
{
    std::ifstream file{fmt::format("/proc/{}/status", pid)};
    std::string word;
    while (file >> word) {
        if (word == which + ":")
            return file >> word ? std::stoull(word, nullptr, 16) : 0;
    }
    return 0;
}

// A client that keeps to no more than the protocol, with queues of dms0.
class plain_client {
  public:
    explicit plain_client(std::string const& socket)
        : channel_{socket, 60s}, memory_{gpurx::device_memory::on_host(8 * mebibyte)}
    {
        auto const dmabuf = gpurx::detail::session_access::state(memory_)->dmabuf_fd();
        auto const reply = answer_to(channel_, detail::open_request{near_interface, 1, 0}, dmabuf);
        if (!reply || !std::holds_alternative<detail::opened_reply>(*reply))
            throw std::runtime_error{"gpurxd gives no queues"};
    }
    [[nodiscard]] std::optional<detail::daemon_reply> ask(detail::daemon_request const& what, int socket = -1)
    {
        return answer_to(channel_, what, socket);
    }

  private:
    detail::daemon_channel channel_;
    gpurx::device_memory memory_;
};

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "a receiver without rights receives into device memory, by gpurxd", "[gpurxd]")
{
    running_daemon daemon;
    auto const how = GENERATE(way::read, way::loan);
    auto const own_user_namespace = GENERATE(false, true);
    CAPTURE(own_user_namespace);
    peer_sender sender{family::v4, {7, stream_bytes}};
    nobodys_program receiver{receives_from(sender.endpoint(), how, own_user_namespace)};
    CHECK(receiver.succeeds());
    CHECK(pools_vanish());
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "a listener without rights is steered by gpurxd", "[gpurxd]")
{
    running_daemon daemon;
    tcp::endpoint const here{near_address(family::v4), 9601};
    peer_sender sender{here, {8, stream_bytes}};
    nobodys_program receiver{receives_one(here)};
    CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "receive_file receives without rights, by gpurxd", "[gpurxd]")
{
    running_daemon daemon;
    tcp::endpoint const here{near_address(family::v4), 9604};
    nobodys_files const files;
    peer_sender sender{here, {15, stream_bytes}};
    nobodys_program receiver{runs(fmt::format(
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
    nobodys_files const files;
    nobodys_program receiver{runs(
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
    nobodys_program receiver{[&](child_report& child) {
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

TEST_CASE_METHOD(unchanged_nic, "gpurxd passes over queues that are leased or reserved", "[gpurxd][lease]")
{
    if (auto const why = why_no_leases(); !why.empty())
        SKIP(why);
    running_daemon daemon;
    leased_queues const leased{{3}};
    run_command("ethtool -X dms0 equal 2");
    nobodys_program receiver{[](child_report& child) {
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
                      nobodys_program receiver{[&](child_report& inner) {
                          drop_rights(false);
                          gpurx::rx_session session{
                              {.interface = leased_interface, .transport = gpurx::transport::devmem, .max_flows = 2},
                              gpurx::device_memory::on_host(8 * mebibyte)};
                          auto const said = session.explain();
                          inner.expect(says(said, "set up by gpurxd"), said.c_str());
                          inner.expect(says(said, "steering: not from here"), said.c_str());
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

TEST_CASE_METHOD(unchanged_nic, "gpurxd gives nothing to those whom the policy does not name", "[gpurxd]")
{
    running_daemon daemon{"allow user 1 interface dms0\nallow user 65534 interface dms0 memory 4MiB\n"};
    nobodys_program receiver{[](child_report& child) {
        drop_rights(false);
        try {
            auto const session = open_session(8 * mebibyte, {.max_flows = 2});
            child.expect(false, "refused");
        } catch (gpurx::system_error const& error) {
            child.expect(std::string{error.what()}.find("of which 4 MiB are allowed") != std::string::npos,
                         error.what());
        }
        gpurx::rx_session const fallen_back{{.interface = "lo", .max_flows = 2},
                                            gpurx::device_memory::on_host(8 * mebibyte)};
        auto const said = fallen_back.explain();
        child.expect(said.find("for user 65534") != std::string::npos, said.c_str());
    }};
    CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
}

namespace {

std::uint64_t printed_seed()
{
    auto const* const text = std::getenv("GPURX_TEST_SEED");  // NOLINT(concurrency-mt-unsafe)
    auto const seed = text != nullptr ? std::stoull(text) : std::random_device{}();
    fmt::print("GPURX_TEST_SEED={} repeats this choice of moments\n", seed);
    return seed;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "when a client of gpurxd is killed, its queues and rules go back", "[gpurxd]")
{
    running_daemon daemon;
    auto const* const rounds_text = std::getenv("GPURX_TEST_KILLS");  // NOLINT(concurrency-mt-unsafe)
    auto const rounds = rounds_text != nullptr ? std::stoul(rounds_text) : 8UL;
    std::mt19937_64 random{printed_seed()};
    auto const begin = std::chrono::steady_clock::now();
    {
        peer_sender sender{family::v4, {9, stream_bytes}};
        nobodys_program receiver{receives_from(sender.endpoint(), way::loan)};
        CHECK(receiver.succeeds());
    }
    auto const life = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
    unsigned with_queues = 0;
    unsigned with_rules = 0;
    for (unsigned long i = 0; i < rounds; ++i) {
        peer_sender sender{family::v4, {9, stream_bytes}};
        nobodys_program receiver{receives_from(sender.endpoint(), way::loan)};
        // Most of a life is before the queues are there: every other one is met after that.
        bool const late = i % 2 == 1;
        REQUIRE((!late || comes_true([] { return !journal_now().owners.empty(); })));
        auto const longest = static_cast<std::uint64_t>(life.count()) / (late ? 3 : 1);
        std::this_thread::sleep_for(std::chrono::microseconds{random() % (longest + 1)});
        auto const left = journal_now();
        receiver.kill();
        with_queues += left.owners.empty() ? 0 : 1;
        with_rules += !left.owners.empty() && !left.owners[0].rules.empty() ? 1 : 0;
        sender.stop();
        CAPTURE(i, detail::serialise(left));
        REQUIRE(settled(settings_before()));
        REQUIRE(pools_vanish());
    }
    fmt::print("{} clients killed within {} ms, {} of them with queues, {} with rules\n", rounds, life.count() / 1000,
               with_queues, with_rules);
}

TEST_CASE_METHOD(unchanged_nic, "flows go on when gpurxd is killed, and nothing is left when it is back", "[gpurxd]")
{
    running_daemon daemon;
    peer_sender sender{family::v4, {10, stream_bytes}};
    sender.pause_at(mebibyte);
    bool const client_s_own = GENERATE(false, true);
    CAPTURE(client_s_own);
    nobodys_program receiver{receives_from(sender.endpoint(), way::read, false, client_s_own)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));
    auto const owners = journal_now().owners;
    REQUIRE(owners.size() == 1);
    if (client_s_own) {
        // The process that serves it: the memory is unbound, what comes then arrives in host memory.
        ::kill(owners[0].key.pid, SIGKILL);
        CHECK(settled(settings_before()));
        sender.resume();
    } else {
        daemon.kill(SIGKILL);
        daemon.start();
        CHECK(journal_now().owners == owners);
        sender.resume();
    }
    auto const said = receiver.report();
    // Who has lost its binding cannot look at it.
    CHECK((said.empty() || (client_s_own && said == "not so: the pool can be looked at\n")));
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd leaves nothing on the NIC when it is told to end with all that it serves",
                 "[gpurxd]")
{
    running_daemon daemon;
    peer_sender sender{family::v4, {13, stream_bytes}};
    sender.pause_at(mebibyte);
    nobodys_program receiver{receives_from(sender.endpoint(), way::read, false, true)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));
    auto const owners = journal_now().owners;
    REQUIRE(owners.size() == 1);
    // As `systemctl kill` does; nobody is there afterwards to put anything back.
    daemon.kill(SIGTERM);
    ::kill(owners[0].key.pid, SIGTERM);
    CHECK(settled(settings_before()));
    sender.resume();
    auto const said = receiver.report();
    CHECK((said.empty() || said == "not so: the pool can be looked at\n"));
    CHECK(pools_vanish());
    daemon.start();
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd puts back what the clients of the one before it leave", "[gpurxd]")
{
    running_daemon daemon;
    peer_sender sender{family::v4, {14, stream_bytes}};
    sender.pause_at(mebibyte);
    nobodys_program receiver{receives_from(sender.endpoint(), way::read, false, true)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));
    auto const owners = journal_now().owners;
    REQUIRE(owners.size() == 1);
    daemon.kill(SIGKILL);
    daemon.start();
    ::kill(owners[0].key.pid, SIGKILL);
    CHECK(settled(settings_before()));
    sender.resume();
    auto const said = receiver.report();
    CHECK((said.empty() || said == "not so: the pool can be looked at\n"));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "several flows go on while gpurxd is killed and restarted, at any moment", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 clients 3 opens 6000\n"};
    constexpr std::uint64_t bytes = 8 * stream_bytes;
    std::mt19937_64 random{printed_seed()};
    std::list<peer_sender> senders;
    std::list<nobodys_program> receivers;
    for (unsigned i = 0; i < 3; ++i) {
        auto& sender = senders.emplace_back(family::v4, stream{50 + i, bytes});
        sender.pause_at(mebibyte);
        receivers.emplace_back(
            receives_from(sender.endpoint(), i % 2 == 0 ? way::read : way::loan, false, false, bytes));
    }
    REQUIRE(comes_true([&] { return std::ranges::all_of(senders, [](auto& one) { return one.sent() >= mebibyte; }); }));
    auto const owners = journal_now().owners;
    REQUIRE(owners.size() == 3);
    unsigned kills = 0;
    for (auto step = 2 * mebibyte; step < bytes; step += 2 * mebibyte) {
        for (auto& sender : senders)
            sender.pause_at(step);
        std::this_thread::sleep_for(std::chrono::microseconds{random() % 30'000});
        daemon.kill(SIGKILL);
        daemon.start();
        ++kills;
        REQUIRE(
            comes_true([&] { return std::ranges::all_of(senders, [&](auto& one) { return one.sent() >= step; }); }));
    }
    // Nobody has put back what is in use.
    CHECK(journal_now().owners == owners);
    for (auto& sender : senders)
        sender.resume();
    for (auto& receiver : receivers)
        CHECK(receiver.succeeds());
    fmt::print("gpurxd was killed and restarted {} times beside 3 flows\n", kills);
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

namespace {

// An open with so many descriptors.
void send_descriptors(detail::daemon_channel const& channel, std::size_t count)
{
    auto bytes = detail::encode(detail::open_request{near_interface, 1, 0});
    iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
    std::vector<std::byte> control(CMSG_SPACE(count * sizeof(int)));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    auto* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::vector<int> const numbers(count, STDERR_FILENO);
    std::memcpy(CMSG_DATA(rights), numbers.data(), count * sizeof(int));
    ::sendmsg(channel.native_handle(), &message, MSG_NOSIGNAL);
}

// One round of all that is wrong. `victim`: an end of somebody else's flow.
void misbehave(child_report& child, std::string const& socket, tcp::endpoint const& victim, tcp::endpoint const& peer)
{
    auto const whole = detail::encode(detail::open_request{near_interface, 1, 0});
    {
        detail::daemon_channel half{socket, 60s};
        half.send(std::span{whole}.first(whole.size() / 2));
        detail::daemon_channel much{socket, 60s};
        much.send(std::vector<std::byte>(100'000));
        detail::daemon_channel flood{socket, 60s};
        send_descriptors(flood, 250);
        detail::daemon_channel file{socket, 60s};
        child.expect(refuses(answer_to(file, detail::open_request{near_interface, 1, 0}, STDERR_FILENO), EINVAL),
                     "no memory, but a file");
    }
    plain_client inside{socket};
    auto const own = listening_at({victim.address(), 0});
    child.expect(refuses(inside.ask(detail::steer_flow_request{victim, peer}, own.get()), EACCES), "another's flow");
    child.expect(refuses(inside.ask(detail::steer_port_request{victim, false}, own.get()), EACCES), "another's port");
    child.expect(refuses(inside.ask(detail::unsteer_request{1}), ENOENT), "another's rule");
    // And goes without a word.
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "a malicious client disturbs no byte of another's flow", "[gpurxd]")
{
    running_daemon daemon{
        "allow user 65534 interface dms0\n"
        "allow user 20000 interface dms0 opens 6000\n"};
    constexpr std::uint64_t bytes = 8 * stream_bytes;
    peer_sender sender{family::v4, {60, bytes}};
    sender.pause_at(mebibyte);
    nobodys_program receiver{receives_from(sender.endpoint(), way::read, false, false, bytes)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));
    auto const matches = matches_now();
    REQUIRE(matches.size() == 1);
    tcp::endpoint const victim{matches[0].local.value(), matches[0].local_port};
    for (auto step = 2 * mebibyte; step <= 10 * mebibyte; step += 2 * mebibyte) {
        nobodys_program attacker{[&](child_report& child) {
            drop_rights(false, 20000);
            misbehave(child, daemon.socket(), victim, matches[0].remote.value());
        }};
        sender.pause_at(step);
        CHECK(attacker.succeeds());
        REQUIRE(comes_true([&] { return sender.sent() >= step; }));
        CHECK(std::ranges::count(matches_now(), matches[0]) == 1);
    }
    sender.resume();
    CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd binds no memory that may only be read", "[gpurxd]")
{
    detail::unique_fd const heap{::open("/dev/dma_heap/system", O_RDONLY | O_CLOEXEC)};
    if (!heap)
        SKIP("this kernel has no /dev/dma_heap/system, and udmabuf's memory can always be written");
    running_daemon daemon;
    for (int const flags : {O_RDONLY, O_RDWR}) {
        bool const may_write = flags == O_RDWR;
        dma_heap_allocation_data what{};
        what.len = 8 * mebibyte;
        what.fd_flags = static_cast<std::uint32_t>(flags | O_CLOEXEC);
        REQUIRE(::ioctl(heap.get(), DMA_HEAP_IOCTL_ALLOC, &what) == 0);
        detail::unique_fd const memory{static_cast<int>(what.fd)};
        nobodys_program client{[&](child_report& child) {
            drop_rights(false);
            detail::daemon_channel channel{daemon.socket(), 60s};
            auto const reply = answer_to(channel, detail::open_request{near_interface, 1, 0}, memory.get());
            child.expect(reply && refuses(reply, EACCES) != may_write,
                         may_write ? "it may be written" : "it may only be read");
        }};
        CHECK(client.succeeds());
    }
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "who opens and hangs up in a loop is slowed down, and the NIC keeps still", "[gpurxd]")
{
    running_daemon daemon{"allow user 20001 interface dms0 opens 2\n"};
    nobodys_program impatient{[&](child_report& child) {
        drop_rights(false, 20001);
        auto const memory = gpurx::device_memory::on_host(8 * mebibyte);
        auto const dmabuf = gpurx::detail::session_access::state(memory)->dmabuf_fd();
        unsigned opened = 0;
        unsigned refused = 0;
        for (int i = 0; i < 6; ++i) {
            detail::daemon_channel channel{daemon.socket(), 60s};
            auto const reply = answer_to(channel, detail::open_request{near_interface, 1, 0}, dmabuf);
            opened += reply && std::holds_alternative<detail::opened_reply>(*reply) ? 1 : 0;
            refused += refuses(reply, EAGAIN) ? 1 : 0;
            channel.finish();
            while (channel.receive())
                continue;
        }
        // Two a minute, and the next one has to wait for half a minute: too long for an answer.
        child.expect(opened >= 2 && refused >= 1, fmt::format("{} opened, {} refused", opened, refused).c_str());
    }};
    CHECK(impatient.succeeds());
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd says who got what, and who was refused and why", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 memory 8MiB\n"};
    nobodys_program client{[&](child_report&) {
        drop_rights(false);
        plain_client const one{daemon.socket()};
    }};
    CHECK(client.succeeds());
    nobodys_program other{[&](child_report& child) {
        drop_rights(false, 20000);
        detail::daemon_channel channel{daemon.socket(), 60s};
        auto const memory = gpurx::device_memory::on_host(8 * mebibyte);
        auto const dmabuf = gpurx::detail::session_access::state(memory)->dmabuf_fd();
        child.expect(refuses(answer_to(channel, detail::open_request{near_interface, 1, 0}, dmabuf), EACCES),
                     "refused");
    }};
    CHECK(other.succeeds());
    CHECK(comes_true([&] { return says(daemon.log(), "has given back dms0 after "); }));
    auto const log = daemon.log();
    CAPTURE(log);
    CHECK(says(log, "user 65534 (nobody) has queue "));
    CHECK(says(log, " of dms0, with 8 MiB of memory\n"));
    CHECK(says(log, "user 20000 was refused: open dms0 for user 20000: Permission denied"));
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd steers nothing that is not the client's own", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 flows 2 clients 1\n"};
    auto const roots = listening_on(9700);
    nobodys_program attacker{[&](child_report& child) {
        drop_rights(false);
        detail::daemon_channel channel{daemon.socket(), 60s};
        auto const memory = gpurx::device_memory::on_host(8 * mebibyte);
        auto const state = gpurx::detail::session_access::state(memory);
        auto const opened = answer_to(channel, detail::open_request{near_interface, 1, 0}, state->dmabuf_fd());
        child.expect(opened && std::holds_alternative<detail::opened_reply>(*opened), "it is let in");
        {
            detail::daemon_channel second{daemon.socket(), 60s};
            child.expect(
                refuses(answer_to(second, detail::open_request{near_interface, 1, 0}, state->dmabuf_fd()), EUSERS),
                "one client is as many as are allowed");
        }
        auto const at = [](std::uint16_t port) { return tcp::endpoint{near_address(family::v4), port}; };
        auto const own = listening_on(9701);
        auto const port = [&](std::uint16_t number, int socket) {
            return answer_to(channel, detail::steer_port_request{at(number), false}, socket);
        };
        child.expect(refuses(port(9700, own.get()), EACCES), "its socket is no proof of another port");
        child.expect(refuses(port(9700, -1), EBADF), "no proof at all");
        child.expect(refuses(port(9700, 0), ENOTSOCK), "a file is no proof");
        child.expect(refuses(port(9700, roots.get()), EACCES), "a socket that was handed on is of its owner");
        child.expect(
            refuses(answer_to(channel, detail::steer_flow_request{at(9700), {far_address(family::v4), 1}}, own.get()),
                    EACCES),
            "no flow of others");
        child.expect(refuses(answer_to(channel, detail::unsteer_request{1}, -1), ENOENT), "no rule that it has not");
        for (std::uint16_t number = 9702; number < 9704; ++number) {
            auto const more = listening_on(number);
            auto const reply = port(number, more.get());
            child.expect(reply && std::holds_alternative<detail::steered_reply>(*reply), "its own port");
        }
        child.expect(refuses(port(9701, own.get()), EDQUOT), "not more rules than are allowed");
    }};
    CHECK(attacker.succeeds());
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "gpurxd steers to no address but the host's own", "[gpurxd]")
{
    running_daemon daemon;
    nobodys_program attacker{[&](child_report& child) {
        drop_rights(false);
        plain_client client{daemon.socket()};
        // Any program may bind to any address: that of a pod or of a guest behind this host, too.
        for (auto const* const address : {"203.0.113.7", "10.77.0.3"}) {
            tcp::endpoint const foreign{asio::ip::make_address(address), 9710};
            auto const socket = listening_at(foreign, binding::of_any_address);
            child.expect(refuses(client.ask(detail::steer_port_request{foreign, false}, socket.get()), EACCES),
                         "no listener on an address that is not the host's");
            child.expect(
                refuses(client.ask(detail::steer_flow_request{foreign, {far_address(family::v4), 1}}, socket.get()),
                        EACCES),
                "no flow to an address that is not the host's");
        }
        child.expect(matches_now().empty(), "no rule");
        // A listener on every address has a rule for each, and none for the port alone.
        tcp::endpoint const any_v4{tcp::v4(), 9711};
        tcp::endpoint const any_v6{tcp::v6(), 9712};
        auto const v4 = listening_at(any_v4);
        auto const v6 = listening_at(any_v6);
        child.expect(was_steered(client.ask(detail::steer_port_request{any_v4, false}, v4.get())), "all of IPv4");
        child.expect(was_steered(client.ask(detail::steer_port_request{any_v6, true}, v6.get())), "all of both");
        auto const all = matches_now();
        for (auto const version : {family::v4, family::v6}) {
            auto const here = near_address(version);
            for (auto const& one : {any_v4, any_v6}) {
                auto const wanted = one == any_v6 || version == family::v4;
                child.expect(std::ranges::any_of(all,
                                                 [&](auto const& match) {
                                                     return match.local == here && match.local_port == one.port();
                                                 }) == wanted,
                             "a rule for dms0's address");
            }
        }
        child.expect(std::ranges::all_of(all, [](auto const& match) { return match.local.has_value(); }),
                     "no rule for every address");
        child.expect(std::ranges::none_of(all, [](auto const& match) { return match.local->is_loopback(); }),
                     "none that no packet of a NIC can have");
    }};
    CHECK(attacker.succeeds());
    CHECK(settled(settings_before()));
}

TEST_CASE_METHOD(unchanged_nic, "a listener on every address is steered by gpurxd without rights", "[gpurxd]")
{
    running_daemon daemon;
    auto const version = GENERATE(family::v4, family::v6);
    tcp::endpoint const everywhere{tcp::v6(), 9603};
    peer_sender sender{tcp::endpoint{near_address(version), 9603}, {12, stream_bytes}};
    nobodys_program receiver{receives_one(everywhere)};
    CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
}

namespace {

// Of dms0, until this ends or drop().
class second_address {
  public:
    second_address() { run_command("ip address add 10.77.0.9/24 dev dms0"); }
    second_address(second_address const&) = delete;
    second_address& operator=(second_address const&) = delete;
    ~second_address() { drop(); }

    void drop()
    {
        if (std::exchange(is_there_, false))
            run_command("ip address del 10.77.0.9/24 dev dms0");
    }
    [[nodiscard]] static asio::ip::address get() { return asio::ip::make_address("10.77.0.9"); }

  private:
    bool is_there_ = true;
};

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "others on the same port of another address take no rule of gpurxd's away", "[gpurxd]")
{
    running_daemon daemon;
    second_address passing;
    tcp::endpoint const here{near_address(family::v4), 9720};
    auto const on_loopback = listening_at({asio::ip::address_v4::loopback(), here.port()});
    auto const on_v6 = listening_at({near_address(family::v6), here.port()});
    nobodys_program client{[&](child_report& child) {
        drop_rights(false);
        plain_client one{daemon.socket()};
        auto const socket = listening_at(here);
        child.expect(was_steered(one.ask(detail::steer_port_request{here, false}, socket.get())), "its own address");
        tcp::endpoint const there{second_address::get(), 9721};
        auto const passes = listening_at(there);
        child.expect(was_steered(one.ask(detail::steer_port_request{there, false}, passes.get())), "its other address");
        // gpurxd looks at all rules together: once it has missed the other address, it has looked at this port, too.
        child.expect(comes_true([] { return matches_now().size() < 2; }), "a rule of no address goes");
        auto const left = matches_now();
        child.expect(left.size() == 1 && left[0].local_port == here.port(), "the rule is still there");
    }};
    CHECK(comes_true([] { return matches_now().size() == 2; }));
    passing.drop();
    CHECK(client.succeeds());
    CHECK(settled(settings_before()));
}

namespace {

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

bool was_opened(std::optional<detail::daemon_reply> const& reply)
{
    return reply && std::holds_alternative<detail::opened_reply>(*reply);
}

// Connects as that user; this process is root again afterwards, and so are its threads.
std::unique_ptr<detail::daemon_channel> connected_as(uid_t user, std::string const& socket)
{
    REQUIRE(::seteuid(user) == 0);
    std::unique_ptr<detail::daemon_channel> channel;
    try {
        channel = std::make_unique<detail::daemon_channel>(socket, 120s);
    } catch (gpurx::system_error const&) {
        channel.reset();
    }
    REQUIRE(::seteuid(0) == 0);
    return channel;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "who has what by gpurxd can be read while they have it", "[gpurxd]")
{
    running_daemon daemon;
    peer_sender sender{family::v4, {11, stream_bytes}};
    sender.pause_at(mebibyte);
    nobodys_program receiver{receives_from(sender.endpoint(), way::read)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));
    std::string page;
    CHECK(comes_true([&] {
        page = daemon.page();
        return says(page, "\ngpurxd_rules{interface=\"dms0\",user=\"65534\"} 1\n");
    }));
    CAPTURE(page);
    CHECK(says(page, "\ngpurxd_clients{interface=\"dms0\",user=\"65534\"} 1\n"));
    CHECK(says(page, "\ngpurxd_queues{interface=\"dms0\",user=\"65534\"} 1\n"));
    CHECK(says(page, "\ngpurxd_memory_bytes{interface=\"dms0\",user=\"65534\"} 8388608\n"));
    CHECK(says(page, "\ngpurxd_limit{interface=\"dms0\",user=\"65534\",limit=\"memory_bytes\"} 67108864\n"));
    // The ring holds pages as long as the queue has the memory.
    CHECK(says(page, "\ngpurxd_pool_pages_in_flight{interface=\"dms0\"} "));
    CHECK_FALSE(says(page, "\ngpurxd_pool_pages_in_flight{interface=\"dms0\"} 0\n"));
    CHECK(says(page, "\ngpurxd_queue_allocation_failures_total{interface=\"dms0\",queue=\""));
    // The process that holds all of that for the client has one right, and can get no other.
    auto const owners = journal_now().owners;
    REQUIRE(owners.size() == 1);
    for (auto const* const which : {"CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb"}) {
        CAPTURE(which);
        CHECK(rights_of(owners[0].key.pid, which) == std::uint64_t{1} << CAP_NET_ADMIN);
    }
    sender.resume();
    CHECK(receiver.succeeds());
    CHECK(settled(settings_before()));
    CHECK(comes_true([&] { return !says(daemon.page(), "gpurxd_clients"); }));
}

TEST_CASE_METHOD(unchanged_nic, "several processes without rights share a NIC by gpurxd", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 clients 5\n"};
    std::list<peer_sender> senders;
    std::list<nobodys_program> receivers;
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

TEST_CASE_METHOD(unchanged_nic, "a hundred clients and a greedy one disturb nobody who receives", "[gpurxd]")
{
    running_daemon daemon{
        "allow user 65534 interface dms0\n"
        "allow user * interface dms0 clients 2\n"};
    auto const memory = gpurx::device_memory::on_host(8 * mebibyte);
    auto const dmabuf = gpurx::detail::session_access::state(memory)->dmabuf_fd();
    peer_sender sender{family::v4, {30, stream_bytes}};
    sender.pause_at(mebibyte);
    nobodys_program receiver{receives_from(sender.endpoint(), way::read)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));

    // Counts go on where an earlier gpurxd of this boot ended.
    auto const before = daemon.page();
    std::vector<std::unique_ptr<detail::daemon_channel>> hundred;
    std::vector<std::unique_ptr<detail::daemon_channel>> greedy;
    // The greedy one has as many as it is let have, and says nothing.
    auto const begin = std::chrono::steady_clock::now();
    for (uid_t i = 0; i < 70; ++i)
        greedy.push_back(connected_as(20000, daemon.socket()));
    for (uid_t i = 0; i < 100; ++i) {
        hundred.push_back(connected_as(10000 + i, daemon.socket()));
        REQUIRE(hundred.back());
        hundred.back()->send(detail::encode(detail::open_request{near_interface, 1, 0}), dmabuf);
    }
    sender.resume();
    CHECK(receiver.succeeds());
    std::size_t opened = 0;
    std::size_t refused = 0;
    for (auto& channel : hundred) {
        for (auto answered = false; !answered;) {
            auto const message = channel->receive();
            REQUIRE(message);
            auto const parsed = detail::parse_daemon_reply(message->bytes);
            auto const& reply = std::get<detail::daemon_reply>(parsed);
            answered = !std::holds_alternative<detail::notice_reply>(reply);
            opened += std::holds_alternative<detail::opened_reply>(reply) ? 1 : 0;
            refused += std::holds_alternative<detail::refused_reply>(reply) ? 1 : 0;
        }
    }
    auto const took = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
    fmt::print("of 100 clients at once {} got queues, all an answer within {} s\n", opened, took.count());
    CHECK(opened + refused == 100);
    // All but the one that other packets need.
    CHECK(opened >= 8);
    std::string page;
    CHECK(comes_true([&] {
        page = daemon.page();
        return refusals(page, "open", "nic") - refusals(before, "open", "nic") == refused &&
               refusals(page, "connect", "crowded") - refusals(before, "connect", "crowded") == 6 &&
               says(page, "\ngpurxd_clients{interface=\"dms0\",user=");
    }));
    CAPTURE(page);
    // And who comes next has their queues, while the greedy one asks on.
    hundred.clear();
    REQUIRE(comes_true([] { return journal_now().owners.empty(); }));
    for (auto& channel : greedy) {
        try {
            if (channel)
                channel->send(std::vector<std::byte>(100));
        } catch (gpurx::system_error const&) {
            continue;  // it has been hung up on
        }
    }
    peer_sender another{family::v4, {31, stream_bytes}};
    nobodys_program next{receives_from(another.endpoint(), way::read)};
    CHECK(next.succeeds());
    greedy.clear();
    CHECK(settled(settings_before()));
    CHECK(pools_vanish());
}

TEST_CASE_METHOD(unchanged_nic, "one gpurxd serves several NICs, and one process several sessions", "[gpurxd]")
{
    second_nic const other;
    running_daemon daemon{
        "allow user 65534 interface dms0 memory 8MiB\n"
        "allow user 65534 interface dms1 memory 4MiB\n"};
    nobodys_program program{[&](child_report& child) {
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

namespace {

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
    nobodys_program program{[&](child_report& child) {
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

TEST_CASE_METHOD(unchanged_nic, "who goes to a network namespace of its own goes on receiving", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 clients 2\n"};
    peer_sender sender{family::v4, {40, stream_bytes}};
    nobodys_program program{[&](child_report& child) {
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

#ifdef GPURX_DOCTOR
TEST_CASE_METHOD(unchanged_nic, "gpurx-doctor says whether gpurxd lets a user have the interface", "[gpurxd]")
{
    auto const doctor_of = [](unsigned user) {
        return output_of(fmt::format("setpriv --reuid {0} --regid {0} --clear-groups --bounding-set=-all {1} {2}; true",
                                     user, GPURX_DOCTOR, near_interface));
    };
    running_daemon daemon;
    auto const allowed = doctor_of(65534);
    CAPTURE(allowed);
    CHECK(says(allowed, "gpurxd would set up queues of dms0 for user 65534"));
    auto const not_allowed = doctor_of(4711);
    CAPTURE(not_allowed);
    CHECK(says(not_allowed, "gpurxd's policy allows user 4711 nothing of dms0"));
    CHECK(says(not_allowed, "echo allow user 4711 interface dms0 >> /etc/gpurx/gpurxd.conf"));
    CHECK(settled(settings_before()));
}
#endif
