// SPDX-License-Identifier: Apache-2.0
//
// Receivers that have no rights at all, and gpurxd, which has one: what they get through it, what they do not get, and
// what is left when either is killed.
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <grp.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bed.hpp"
#include "child.hpp"
#include "container.hpp"
#include "nic.hpp"
#include "nic/daemon_channel.hpp"
#include "nic/daemon_protocol.hpp"
#include "session/session_state.hpp"
#include "syscalls.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
using gpurx::test::child_report;
namespace detail = gpurx::detail;

namespace {

constexpr uid_t stranger = 65534;
constexpr std::uint64_t stream_bytes = 4 * mebibyte;

template <class Ready>
bool comes_true(Ready ready)
{
    auto const deadline = std::chrono::steady_clock::now() + 30s;
    while (!ready()) {
        if (std::chrono::steady_clock::now() > deadline)
            return false;
        std::this_thread::sleep_for(5ms);
    }
    return true;
}

// The daemon, with a policy of the test's own.
class running_daemon {
  public:
    explicit running_daemon(std::string const& policy = "allow user 65534 interface dms0 queues 2 memory 64MiB\n")
        : directory_{std::filesystem::temp_directory_path() / "gpurxd-test"}
    {
        std::filesystem::create_directories(directory_);
        std::ofstream{directory_ / "policy"} << policy;
        REQUIRE(::chmod((directory_ / "policy").c_str(), 0600) == 0);
        REQUIRE(::chmod("/dev/udmabuf", 0666) == 0);
        // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread yet
        REQUIRE(::setenv("GPURXD_SOCKET", socket().c_str(), 1) == 0);
        start();
    }
    running_daemon(running_daemon const&) = delete;
    running_daemon& operator=(running_daemon const&) = delete;
    ~running_daemon()
    {
        kill(SIGTERM);
        ::chmod("/dev/udmabuf", 0600);
        ::unsetenv("GPURXD_SOCKET");  // NOLINT(concurrency-mt-unsafe)
    }

    void start()
    {
        std::vector<std::string> command{
            GPURX_GPURXD,       "--socket", socket(), "--policy", (directory_ / "policy").string(),
            "--metrics-socket", metrics()};
        std::vector<char*> arguments;
        arguments.reserve(command.size() + 1);
        for (auto& word : command)
            arguments.push_back(word.data());
        arguments.push_back(nullptr);
        auto const error = ::posix_spawn(&pid_, arguments[0], nullptr, nullptr, arguments.data(), environ);
        if (error != 0 || !comes_true([this] { return is_there(); }))
            throw std::runtime_error{"gpurxd does not start"};
    }
    void kill(int signal) const
    {
        ::kill(pid_, signal);
        ::waitpid(pid_, nullptr, 0);
    }

    [[nodiscard]] std::string socket() const { return (directory_ / "socket").string(); }
    [[nodiscard]] std::string metrics() const { return (directory_ / "metrics").string(); }
    // What Prometheus would read.
    [[nodiscard]] std::string page() const
    {
        asio::io_context context{1};
        asio::local::stream_protocol::socket asked{context};
        asked.connect(asio::local::stream_protocol::endpoint{metrics()});
        asio::write(asked, asio::buffer(std::string_view{"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"}));
        std::string text;
        gpurx::error_code code;
        asio::read(asked, asio::dynamic_buffer(text), code);
        return text;
    }

  private:
    [[nodiscard]] bool is_there() const
    {
        try {
            detail::daemon_channel const tried{socket(), 1s};
            return true;
        } catch (gpurx::system_error const&) {
            return false;
        }
    }

    std::filesystem::path directory_;
    pid_t pid_ = -1;
};

void drop_rights(bool own_user_namespace)
{
    if (::setgroups(0, nullptr) != 0 || ::setgid(stranger) != 0 || ::setuid(stranger) != 0)
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
                                                 bool may_reach_host = false)
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
        child.expect(intact(result, stream_bytes), fmt::format("intact: {}", fmt::streamed(result)).c_str());
        child.expect(may_reach_host || result.stats.host_bytes == 0, "no byte arrived in host memory");
        child.expect(session.pool_stats().has_value(), "the pool can be looked at");
    };
}

[[nodiscard]] bool settled(std::string const& before)
{
    return comes_true([&] { return journal_now().owners.empty() && nic_settings() == before; });
}

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

detail::unique_fd listening_on(std::uint16_t port)
{
    detail::unique_fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    tcp::endpoint const here{near_address(family::v4), port};
    if (::bind(socket.get(), here.data(), static_cast<socklen_t>(here.size())) != 0 || ::listen(socket.get(), 4) != 0)
        throw std::runtime_error{"cannot listen"};
    return socket;
}

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
    nobodys_program receiver{[&](child_report& child) {
        drop_rights(false);
        auto session = open_session(8 * mebibyte, {.rx_queues = 2, .max_flows = 2});
        asio::io_context context{1};
        tcp::acceptor acceptor{context};
        acceptor.open(here.protocol());
        acceptor.set_option(tcp::acceptor::reuse_address{true});
        acceptor.bind(here);
        session.steer(acceptor);
        acceptor.listen(1);
        outcome result;
        gpurx::receiver rx{context.get_executor(), session, acceptor.accept()};
        asio::co_spawn(context, consume(std::move(rx), way::read, result), rethrow);
        context.run();
        child.expect(intact(result, stream_bytes), fmt::format("intact: {}", fmt::streamed(result)).c_str());
        child.expect(result.stats.host_bytes == 0, "no byte arrived in host memory");
    }};
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
                          inner.expect(said.find("set up by gpurxd") != std::string::npos, said.c_str());
                          asio::io_context context;
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
                          inner.expect(intact(result, stream_bytes),
                                       fmt::format("intact: {}", fmt::streamed(result)).c_str());
                          inner.expect(result.stats.host_bytes == 0, "no byte arrived in host memory");
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

TEST_CASE_METHOD(unchanged_nic, "when a client of gpurxd is killed, its queues and rules go back", "[gpurxd]")
{
    running_daemon daemon;
    auto const* const rounds_text = std::getenv("GPURX_TEST_KILLS");  // NOLINT(concurrency-mt-unsafe)
    auto const rounds = rounds_text != nullptr ? std::stoul(rounds_text) : 8UL;
    auto const* const seed_text = std::getenv("GPURX_TEST_SEED");  // NOLINT(concurrency-mt-unsafe)
    auto const seed = seed_text != nullptr ? std::stoull(seed_text) : std::random_device{}();
    fmt::print("GPURX_TEST_SEED={} repeats this choice of moments\n", seed);
    std::mt19937_64 random{seed};
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

TEST_CASE_METHOD(unchanged_nic, "gpurxd steers nothing that is not the client's own", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 flows 2 clients 1\n"};
    auto const roots = listening_on(9700);
    nobodys_program attacker{[&](child_report& child) {
        drop_rights(false);
        detail::daemon_channel channel{daemon.socket(), 30s};
        auto const memory = gpurx::device_memory::on_host(8 * mebibyte);
        auto const state = gpurx::detail::session_access::state(memory);
        auto const opened = answer_to(channel, detail::open_request{near_interface, 1, 0}, state->dmabuf_fd());
        child.expect(opened && std::holds_alternative<detail::opened_reply>(*opened), "it is let in");
        {
            detail::daemon_channel second{daemon.socket(), 30s};
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

bool says(std::string const& page, std::string_view line)
{
    return page.find(line) != std::string::npos;
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
    auto const page = daemon.page();
    CHECK(says(page, fmt::format("\ngpurxd_refusals_total{{request=\"open\",reason=\"nic\"}} {}\n", refused)));
    CHECK(says(page, "\ngpurxd_clients{interface=\"dms0\",user="));
    CHECK(says(page, "\ngpurxd_refusals_total{request=\"connect\",reason=\"crowded\"} 6\n"));
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
        auto const page = daemon.page();
        for (auto const* const name : {"dms0", "dms1"})
            child.expect(says(page, fmt::format("\ngpurxd_clients{{interface=\"{}\",user=\"65534\"}} 1\n", name)),
                         page.c_str());
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
        detail::daemon_channel channel{daemon.socket(), 30s};
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
