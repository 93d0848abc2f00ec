// SPDX-License-Identifier: Apache-2.0
#include "unprivileged.hpp"

#include <fmt/ostream.h>
#include <grp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <variant>

#include "nic.hpp"
#include "session/session_state.hpp"

namespace gpurx::lab {

using namespace std::chrono_literals;

void drop_rights(bool own_user_namespace, uid_t user)
{
    if (::setgroups(0, nullptr) != 0 || ::setgid(user) != 0 || ::setuid(user) != 0)
        throw std::runtime_error{"cannot become nobody"};
    // Else its files in /proc are root's.
    ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    if (own_user_namespace && ::unshare(CLONE_NEWUSER) != 0)
        throw std::runtime_error{"cannot have a user namespace"};
}

std::string unprivileged_program::report()
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

bool unprivileged_program::succeeds()
{
    auto const text = report();
    fmt::print(stderr, "{}", text);
    return text.empty();
}

std::function<void(child_report&)> receives_from(tcp::endpoint there, way how, bool own_user_namespace,
                                                 bool may_reach_host, std::uint64_t bytes)
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

std::function<void(child_report&)> receives_one(tcp::endpoint const& here)
{
    return [=](child_report& child) {
        drop_rights(false);
        auto session = open_session(8 * mebibyte, {.rx_queues = 2, .max_flows = 2});
        receive_one(session, here, child);
    };
}

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

bool was_opened(std::optional<detail::daemon_reply> const& reply)
{
    return reply && std::holds_alternative<detail::opened_reply>(*reply);
}

bool was_steered(std::optional<detail::daemon_reply> const& reply)
{
    return reply && std::holds_alternative<detail::steered_reply>(*reply);
}

detail::unique_fd listening_at(tcp::endpoint const& here, binding how)
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

std::vector<detail::flow_match> matches_now()
{
    std::vector<detail::flow_match> all;
    for (auto const& one : detail::kernel_nic{near_interface}.rules()) {
        if (one.rule)
            all.push_back(one.rule->match);
    }
    return all;
}

plain_client::plain_client(std::string const& socket)
    : channel_{socket, 60s}, memory_{gpurx::device_memory::on_host(8 * mebibyte)}
{
    auto const dmabuf = gpurx::detail::session_access::state(memory_)->dmabuf_fd();
    auto const reply = answer_to(channel_, detail::open_request{near_interface, 1, 0}, dmabuf);
    if (!reply || !std::holds_alternative<detail::opened_reply>(*reply))
        throw std::runtime_error{"gpurxd gives no queues"};
}

}  // namespace gpurx::lab
