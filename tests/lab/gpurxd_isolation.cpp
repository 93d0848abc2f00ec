// SPDX-License-Identifier: Apache-2.0
//
// Clients of gpurxd that would steer what is not theirs, or disturb others.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/syscalls.hpp"
#include "bed.hpp"
#include "child.hpp"
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

TEST_CASE_METHOD(unchanged_nic, "a malicious client disturbs no byte of another's flow", "[gpurxd]")
{
    running_daemon daemon{
        "allow user 65534 interface dms0\n"
        "allow user 20000 interface dms0 opens 6000\n"};
    constexpr std::uint64_t bytes = 8 * stream_bytes;
    peer_sender sender{family::v4, {60, bytes}};
    sender.pause_at(mebibyte);
    unprivileged_program receiver{receives_from(sender.endpoint(), way::read, false, false, bytes)};
    REQUIRE(comes_true([&] { return sender.sent() >= mebibyte; }));
    auto const matches = matches_now();
    REQUIRE(matches.size() == 1);
    tcp::endpoint const victim{matches[0].local.value(), matches[0].local_port};
    for (auto step = 2 * mebibyte; step <= 10 * mebibyte; step += 2 * mebibyte) {
        unprivileged_program attacker{[&](child_report& child) {
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

TEST_CASE_METHOD(unchanged_nic, "gpurxd steers nothing that is not the client's own", "[gpurxd]")
{
    running_daemon daemon{"allow user 65534 interface dms0 flows 2 clients 1\n"};
    auto const roots = listening_on(9700);
    unprivileged_program attacker{[&](child_report& child) {
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
    unprivileged_program attacker{[&](child_report& child) {
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

TEST_CASE_METHOD(unchanged_nic, "others on the same port of another address take no rule of gpurxd's away", "[gpurxd]")
{
    running_daemon daemon;
    second_address passing;
    tcp::endpoint const here{near_address(family::v4), 9720};
    auto const on_loopback = listening_at({asio::ip::address_v4::loopback(), here.port()});
    auto const on_v6 = listening_at({near_address(family::v6), here.port()});
    unprivileged_program client{[&](child_report& child) {
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
