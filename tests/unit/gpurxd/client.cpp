// SPDX-License-Identifier: Apache-2.0
//
// A client and its server over a socket pair, with a NIC that is none: hang-ups, half messages, descriptors that are
// too many or of something else, and what is undone after each.
#include "client.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "descriptors.hpp"
#include "eventually.hpp"
#include "fake_nic.hpp"
#include "lease/daemon_nic.hpp"
#include "memory/memory_state.hpp"
#include "session/transport_choice.hpp"

using namespace gpurx;
using namespace gpurx::gpurxd;
using namespace std::chrono_literals;

namespace {

// No limit of a test: who is asked answers long before.
constexpr auto patience = 1min;

std::atomic<request_kind> last_refused{request_kind::connect};
std::atomic<int> looks{0};  // at whose the ports are

// A server looks some times more, and does what it finds is to be done.
[[nodiscard]] bool looks_on()
{
    return test::eventually([until = looks + 4] { return looks >= until; });
}

ino_t inode_of(int descriptor)
{
    struct stat what {};
    REQUIRE(::fstat(descriptor, &what) == 0);
    return what.st_ino;
}

// Lets everybody have what `most` says, of a fake NIC.
class fake_backend final : public client_backend {
  public:
    fake_backend(std::shared_ptr<test::nic_log> log, limits most) : log_{std::move(log)}, most_{most} {}

    limits admit(std::string_view interface) override
    {
        if (interface != "fake0")
            detail::fail(EACCES, "open", std::string{interface});
        return most_;
    }
    std::string policy_path() const override { return "/elsewhere/policy"; }
    std::uint64_t dmabuf_size(int descriptor) override
    {
        if (descriptor < 0)
            detail::fail(EBADF, "open", "nothing");
        return 1 << 20;
    }
    std::unique_ptr<detail::session_nic> lease(detail::open_request const&, int dmabuf,
                                               std::function<void(std::string_view)> const& notice) override
    {
        notice("a word before");
        if (log_->unbindable == inode_of(dmabuf))
            detail::fail(524, "bind-rx", "fake0 queue 6");
        return std::make_unique<test::fake_nic>(log_, 7);
    }
    void check_flow(int descriptor, detail::steer_flow_request const&) override { check(descriptor); }
    std::vector<asio::ip::tcp::endpoint> check_listener(int descriptor, detail::steer_port_request const& what) override
    {
        check(descriptor);
        if (!what.local.address().is_unspecified())
            return {what.local};
        return {{asio::ip::make_address("10.0.0.1"), what.local.port()},
                {asio::ip::make_address("10.0.0.3"), what.local.port()}};
    }
    std::set<asio::ip::tcp::endpoint> find_lost(std::set<asio::ip::tcp::endpoint> const& ends) override
    {
        ++looks;
        asio::ip::tcp::endpoint const lost{asio::ip::make_address("10.0.0.1"), log_->shared_port.load()};
        return ends.contains(lost) ? std::set{lost} : std::set<asio::ip::tcp::endpoint>{};
    }

    void on_opened(client_metrics) override {}
    void on_rules_changed(std::uint64_t, std::uint64_t, std::uint64_t) noexcept override {}
    void on_refused(request_kind what, error_code, diagnostics const&) noexcept override { last_refused = what; }

  private:
    static void check(int descriptor)
    {
        if (descriptor < 0)
            detail::fail(EBADF, "steer", "nothing");
    }

    std::shared_ptr<test::nic_log> log_;
    limits most_;
};

// A server for one client after the other, at a path, on a thread of its own.
class server {
  public:
    explicit server(limits most = {}, unsigned clients = 1, std::chrono::milliseconds limit = patience)
        : path_{std::filesystem::temp_directory_path() / fmt::format("gpurxd-unit-{}", ::getpid())}
    {
        std::filesystem::remove(path_);
        listening_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
        REQUIRE(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
        REQUIRE(::listen(listening_.get(), 4) == 0);
        thread_ = std::thread{[this, most, clients, limit] { run(most, clients, limit); }};
    }
    server(server const&) = delete;
    server& operator=(server const&) = delete;
    ~server()
    {
        if (thread_.joinable())
            thread_.join();
        std::filesystem::remove(path_);
    }

    [[nodiscard]] std::string path() const { return path_.string(); }
    // Waits until all clients have gone.
    [[nodiscard]] close_reason end()
    {
        thread_.join();
        return end_.value();
    }
    std::shared_ptr<test::nic_log> nic = std::make_shared<test::nic_log>();

  private:
    void run(limits most, unsigned clients, std::chrono::milliseconds limit)
    {
        for (unsigned i = 0; i < clients; ++i) {
            detail::daemon_channel connection{
                detail::unique_fd{::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC)}};
            fake_backend backend{nic, most};
            end_ = serve(connection, backend, limit, 5ms);
        }
    }

    std::filesystem::path path_;
    detail::unique_fd listening_;
    std::optional<close_reason> end_;
    std::thread thread_;
};

std::unique_ptr<detail::daemon_nic> open_at(server const& at, error_code& code, diagnostics& why, unsigned queues = 1,
                                            std::string interface = "fake0")
{
    return detail::daemon_nic::open({.interface = std::move(interface),
                                     .rx_queues = queues,
                                     .dmabuf_fd = STDOUT_FILENO,
                                     .socket = at.path(),
                                     .notice = {}},
                                    code, why);
}

asio::ip::tcp::endpoint const here{asio::ip::make_address("10.0.0.1"), 80};
asio::ip::tcp::endpoint const there{asio::ip::make_address("10.0.0.2"), 81};

// A client that keeps to nothing.
void send_raw(detail::daemon_channel const& channel, void const* bytes, std::size_t size, int descriptors = 0)
{
    iovec part{.iov_base = const_cast<void*>(bytes), .iov_len = size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::array<int, 64> numbers{};
    numbers.fill(STDOUT_FILENO);
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof numbers)> control{};
    if (descriptors > 0) {
        auto const length = static_cast<std::size_t>(descriptors) * sizeof(int);
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(length);
        auto* const rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(length);
        std::memcpy(CMSG_DATA(rights), numbers.data(), length);
    }
    REQUIRE(::sendmsg(channel.native_handle(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
}

detail::refused_reply refusal_of(detail::daemon_channel& channel)
{
    auto const message = channel.receive();
    REQUIRE(message);
    auto const parsed = detail::parse_daemon_reply(message->bytes);
    REQUIRE(std::holds_alternative<detail::daemon_reply>(parsed));
    auto const& reply = std::get<detail::daemon_reply>(parsed);
    REQUIRE(std::holds_alternative<detail::refused_reply>(reply));
    return std::get<detail::refused_reply>(reply);
}

int refusal_from(detail::daemon_channel& channel)
{
    return refusal_of(channel).code.value();
}

}  // namespace

TEST_CASE("a client gets a NIC, rules and notices, and all is undone when it goes")
{
    server at;
    std::vector<std::string> notices;
    error_code code;
    diagnostics why;
    auto nic = detail::daemon_nic::open({.interface = "fake0",
                                         .dmabuf_fd = STDOUT_FILENO,
                                         .socket = at.path(),
                                         .notice = [&](std::string_view text) { notices.emplace_back(text); }},
                                        code, why);
    REQUIRE(nic);
    CHECK(notices == std::vector<std::string>{"a word before"});
    CHECK(nic->dmabuf_id() == 7);
    CHECK(nic->queues() == std::vector<unsigned>{6, 7});
    CHECK(nic->page_size() == 4096);
    {
        auto const flow = nic->steer_flow(STDOUT_FILENO, here, there, code, why);
        auto const port = nic->steer_port(STDOUT_FILENO, here, false, code, why);
        REQUIRE(flow);
        REQUIRE(port);
        CHECK(at.nic->rules == 1);
        CHECK(at.nic->listeners == 1);
        CHECK(at.nic->flows.at(0) == std::pair{here, there});
        CHECK(at.nic->moved.empty());
        CHECK(nic->moves_flows());
        auto const moved = nic->move_flow(STDOUT_FILENO, there, here, code, why);
        REQUIRE(moved);
        CHECK(at.nic->rules == 2);
        CHECK(at.nic->flows.size() == 1);
        CHECK(at.nic->moved.at(0) == std::pair{there, here});
    }
    CHECK(at.nic->rules == 0);
    CHECK(at.nic->listeners == 0);
    nic.reset();
    CHECK_FALSE(at.nic->alive);
    CHECK(at.end() == close_reason::hung_up);
}

TEST_CASE("a client that asks for too much is refused with the reason, and leaves nothing")
{
    server at{limits{.queues = 2, .flows = 1}, 4};
    error_code code;
    diagnostics why;
    CHECK_FALSE(open_at(at, code, why, 1, "other0"));
    CHECK(code.value() == EACCES);
    CHECK_FALSE(open_at(at, code, why, 3));
    CHECK(describe(code, why).find("3 queues of fake0 (2 allowed)") != std::string::npos);
    CHECK_FALSE(open_at(at, code, why, 0));
    CHECK(last_refused == request_kind::open);

    auto nic = open_at(at, code, why, 2);
    REQUIRE(nic);
    auto first = nic->steer_flow(STDOUT_FILENO, here, there, code, why);
    CHECK_FALSE(nic->steer_port(STDOUT_FILENO, here, false, code, why));
    CHECK(code.value() == EDQUOT);
    first.reset();
    CHECK(nic->steer_port(STDOUT_FILENO, here, false, code, why));
    at.nic->refusal = error_code{ENOSPC, boost::system::system_category()};
    CHECK_FALSE(nic->steer_flow(STDOUT_FILENO, here, there, code, why));
    CHECK(code.value() == ENOSPC);
    CHECK(why.kernel_message == "no room");
    nic.reset();
    CHECK_FALSE(at.nic->alive);
}

// A GPU's memory where the mapping for PCIe cannot be attached to.
struct exported_twice final : detail::memory_state {
    exported_twice() { set_export(first.get(), {}, {}); }
    [[nodiscard]] std::string explain() const override { return {}; }
    void acquire(cuda_stream_ref /*stream*/) noexcept override {}
    [[nodiscard]] int other_dmabuf_fd() override { return second.get(); }

    detail::unique_fd first{::memfd_create("first", MFD_CLOEXEC)};
    detail::unique_fd second{::memfd_create("second", MFD_CLOEXEC)};
};

TEST_CASE("a client whose dmabuf cannot be bound retries with the other one, and gets the first error")
{
    server at{limits{}, 5};
    exported_twice memory;
    auto const lease = [&](bool& other, error_code& code, diagnostics& why) {
        auto const ask = [&](int dmabuf, error_code& failed,
                             diagnostics& reason) -> std::unique_ptr<detail::session_nic> {
            return detail::daemon_nic::open(
                {.interface = "fake0", .dmabuf_fd = dmabuf, .socket = at.path(), .notice = {}}, failed, reason);
        };
        return detail::lease_for(memory, ask, other, code, why);
    };
    bool other = false;
    error_code code;
    diagnostics why;
    at.nic->unbindable = inode_of(memory.first.get());
    {
        auto const nic = lease(other, code, why);
        CHECK(nic != nullptr);
        CHECK(other);
        CHECK_FALSE(code);
        CHECK(at.nic->alive);
    }
    CHECK_FALSE(at.nic->alive);
    at.nic->unbindable = inode_of(memory.second.get());
    {
        auto const nic = lease(other, code, why);
        CHECK(nic != nullptr);
        CHECK_FALSE(other);
    }
    memory.second = detail::unique_fd{::dup(memory.first.get())};
    at.nic->unbindable = inode_of(memory.first.get());
    CHECK(lease(other, code, why) == nullptr);
    CHECK(code.value() == 524);
    CHECK(why.operation == "bind-rx");
    CHECK(why.object == "fake0 queue 6");
}

TEST_CASE("a client that vanishes leaves nothing, rules included")
{
    server at;
    {
        detail::daemon_channel channel{at.path(), patience};
        channel.send(detail::encode(detail::open_request{"fake0", 1, 0}), STDOUT_FILENO);
        static_cast<void>(channel.receive());
        static_cast<void>(channel.receive());
        channel.send(detail::encode(detail::steer_flow_request{here, there}), STDOUT_FILENO);
        static_cast<void>(channel.receive());
        CHECK(at.nic->rules == 1);
    }
    CHECK(at.end() == close_reason::hung_up);
    CHECK_FALSE(at.nic->alive);
    CHECK(at.nic->outlived == 0);
}

TEST_CASE("a rule for a port that another user opened, too, is removed")
{
    server at;
    std::vector<std::string> notices;
    error_code code;
    diagnostics why;
    auto nic = detail::daemon_nic::open({.interface = "fake0",
                                         .dmabuf_fd = STDOUT_FILENO,
                                         .socket = at.path(),
                                         .notice = [&](std::string_view text) { notices.emplace_back(text); }},
                                        code, why);
    REQUIRE(nic);
    auto flow = nic->steer_flow(STDOUT_FILENO, here, there, code, why);
    auto own = nic->steer_flow(STDOUT_FILENO, there, here, code, why);
    auto port = nic->steer_port(STDOUT_FILENO, here, false, code, why);
    REQUIRE((flow && own && port));
    CHECK(looks_on());
    CHECK(at.nic->rules + at.nic->listeners == 3);
    at.nic->shared_port = here.port();
    CHECK(test::eventually([&] { return at.nic->rules + at.nic->listeners == 1; }));
    CHECK(looks_on());
    CHECK(at.nic->rules == 1);
    CHECK(at.nic->listeners == 0);
    // What the client gives up afterwards is no error.
    flow.reset();
    port.reset();
    own.reset();
    nic.reset();
    CHECK(notices.back().starts_with("gpurxd removed 2 rules for 10.0.0.1 port 80: "));
}

TEST_CASE("a listener on every address has a rule for each, which all count, and of which one can be lost")
{
    server at{limits{.flows = 3}};
    error_code code;
    diagnostics why;
    auto nic = open_at(at, code, why);
    REQUIRE(nic);
    asio::ip::tcp::endpoint const everywhere{asio::ip::address_v4::any(), 80};
    auto first = nic->steer_port(STDOUT_FILENO, everywhere, false, code, why);
    REQUIRE(first);
    CHECK(at.nic->listeners == 2);
    CHECK(at.nic->ports.back() == std::pair{asio::ip::tcp::endpoint{asio::ip::make_address("10.0.0.3"), 80}, false});
    CHECK_FALSE(nic->steer_port(STDOUT_FILENO, everywhere, false, code, why));
    CHECK(code.value() == EDQUOT);
    CHECK(at.nic->listeners == 2);
    at.nic->shared_port = 80;
    CHECK(test::eventually([&] { return at.nic->listeners == 1; }));
    CHECK(looks_on());
    CHECK(at.nic->listeners == 1);
    first.reset();
    CHECK(at.nic->listeners == 0);
}

TEST_CASE("a client that asks for nothing is not waited for")
{
    server at{{}, 1, 20ms};
    detail::daemon_channel const channel{at.path(), patience};
    CHECK(at.end() == close_reason::silent);
}

TEST_CASE("half a message, one too long, and too many descriptors end the connection", "[native]")
{
    auto const before = test::open_descriptors();
    {
        server at{{}, 4};
        auto const whole = detail::encode(detail::open_request{"fake0", 1, 0});
        {
            detail::daemon_channel channel{at.path(), patience};
            send_raw(channel, whole.data(), whole.size() / 2);
            CHECK(refusal_from(channel) == EPROTO);
            CHECK_FALSE(channel.receive());
        }
        {
            detail::daemon_channel channel{at.path(), patience};
            std::vector<std::byte> const much(100'000);
            send_raw(channel, much.data(), much.size());
            CHECK(refusal_from(channel) == EPROTO);
        }
        {
            detail::daemon_channel channel{at.path(), patience};
            send_raw(channel, whole.data(), whole.size(), 64);
            CHECK(refusal_from(channel) == EPROTO);
        }
        {
            detail::daemon_channel channel{at.path(), patience};
            std::array<std::uint16_t, 3> const other{99, 1, 0};
            send_raw(channel, other.data(), sizeof other);
            CHECK(refusal_from(channel) == EPROTONOSUPPORT);
        }
        CHECK(at.end() == close_reason::not_ours);
        CHECK_FALSE(at.nic->alive);
    }
    CHECK(test::open_descriptors() == before);
}

TEST_CASE("an open without memory is a question, not an attempt")
{
    server at;
    {
        detail::daemon_channel channel{at.path(), patience};
        channel.send(detail::encode(detail::open_request{"other0", 1, 0}));
        CHECK(refusal_from(channel) == EACCES);
    }
    CHECK(at.end() == close_reason::refused);
    CHECK(last_refused == request_kind::probe);
}

TEST_CASE("a probe has the size of the memory, and a refusal the path of the policy")
{
    limits most;
    most.memory = 1 << 20;
    server at{most, 3};
    auto const answer_to = [&at](std::uint64_t memory) {
        detail::daemon_channel channel{at.path(), patience};
        channel.send(detail::encode(detail::open_request{"fake0", 1, 0, memory}));
        return refusal_of(channel);
    };
    CHECK(answer_to(0).code.value() == EBADF);
    CHECK(answer_to(1 << 20).code.value() == EBADF);
    auto const too_much = answer_to((1 << 20) + 1);
    CHECK(too_much.code.value() == EACCES);
    CHECK_THAT(too_much.why.object, Catch::Matchers::ContainsSubstring("(1 MiB allowed)"));
    CHECK_THAT(too_much.why.advice, Catch::Matchers::ContainsSubstring("(/elsewhere/policy)"));
    CHECK(at.end() == close_reason::refused);
    CHECK(last_refused == request_kind::probe);
}

TEST_CASE("a client steers nothing before a NIC is open, and opens none twice")
{
    server at{{}, 2};
    {
        detail::daemon_channel channel{at.path(), patience};
        channel.send(detail::encode(detail::steer_flow_request{here, there}), STDOUT_FILENO);
        CHECK(refusal_from(channel) == ENOTCONN);
        CHECK_FALSE(channel.receive());
    }
    {
        detail::daemon_channel channel{at.path(), patience};
        auto const open = detail::encode(detail::open_request{"fake0", 1, 0});
        channel.send(open, STDOUT_FILENO);
        static_cast<void>(channel.receive());
        static_cast<void>(channel.receive());
        channel.send(open, STDOUT_FILENO);
        CHECK(refusal_from(channel) == EALREADY);
        channel.send(detail::encode(detail::unsteer_request{1}));
        CHECK(refusal_from(channel) == ENOENT);
        CHECK(at.nic->alive);
    }
    CHECK(at.end() == close_reason::hung_up);
}

TEST_CASE("rules above the rate wait, and a client that goes meanwhile is not waited for")
{
    server at{limits{.flows = 100, .rules = 1}};
    {
        detail::daemon_channel channel{at.path(), patience};
        channel.send(detail::encode(detail::open_request{"fake0", 1, 0}), STDOUT_FILENO);
        for (int i = 0; i < 60; ++i)
            channel.send(detail::encode(detail::steer_flow_request{here, there}), STDOUT_FILENO);
    }
    CHECK(at.end() == close_reason::hung_up);
    CHECK(at.nic->flows.size() < 60);  // of which each takes a second
    CHECK_FALSE(at.nic->alive);
}

TEST_CASE("a session gets an error when the daemon has ended")
{
    error_code code;
    diagnostics why;
    server at{{}, 0};  // takes nobody, and ends
    auto const nowhere = at.path() + "-nowhere";
    CHECK_FALSE(detail::daemon_nic::open({.interface = "fake0", .socket = nowhere, .notice = {}}, code, why));
    CHECK(code.value() == ENOENT);
    CHECK(why.advice.find("check that gpurxd runs") != std::string::npos);
    CHECK_FALSE(detail::daemon_nic::open({.interface = "fake0", .socket = at.path(), .timeout = 50ms, .notice = {}},
                                         code, why));
    CHECK(code.value() == ETIMEDOUT);
    CHECK(why.advice.find("does not answer") != std::string::npos);
}
