// SPDX-License-Identifier: Apache-2.0
#include "client.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <exception>
#include <utility>

#include "base/byte_size.hpp"
#include "base/failure.hpp"
#include "nic/flow_rule.hpp"

namespace gpurx::gpurxd {

using detail::channel_wait;
using detail::daemon_channel;
using detail::fail;
using std::chrono::milliseconds;

namespace {

std::string changes_policy(client_backend const& backend)
{
    return fmt::format("reduce the request, or change the policy of gpurxd ({})", backend.policy_path());
}

request_kind kind_of(detail::daemon_request const& what, detail::unique_fd const& descriptor)
{
    if (auto const* const open = std::get_if<detail::open_request>(&what))
        return descriptor && open->probe_memory == 0 ? request_kind::open : request_kind::probe;
    return std::holds_alternative<detail::unsteer_request>(what) ? request_kind::unsteer : request_kind::steer;
}

}  // namespace

client::~client()
{
    rules_.clear();
    nic_.reset();
}

rate_limit::clock::duration client::wait_before(detail::daemon_request const& what, rate_limit::clock::time_point now)
{
    auto const steers = std::holds_alternative<detail::steer_flow_request>(what) ||
                        std::holds_alternative<detail::steer_port_request>(what);
    return steers && rate_ ? rate_->next(now) : rate_limit::clock::duration::zero();
}

detail::daemon_reply client::handle(detail::daemon_request const& what, detail::unique_fd descriptor)
{
    try {
        if (auto const* const request = std::get_if<detail::open_request>(&what))
            return open(*request, descriptor.get());
        if (nic_ == nullptr)
            fail(ENOTCONN, "steer", "before open");
        if (auto const* const request = std::get_if<detail::unsteer_request>(&what))
            return unsteer(*request);
        return steer(what, descriptor.get());
    } catch (system_error const& error) {
        backend_.on_refused(kind_of(what, descriptor), error.code(), error.why());
        return detail::refused_reply{error.code(), error.why()};
    }
}

detail::daemon_reply client::open(detail::open_request const& what, int dmabuf)
{
    auto const& interface = what.interface;
    if (rate_)
        fail(EALREADY, "open", interface, "make a connection for each session");
    most_ = backend_.admit(interface);
    rate_.emplace(most_.rules);
    if (what.rx_queues == 0 || what.rx_queues > most_.queues)
        fail(EACCES, "open", fmt::format("{} queues of {} ({} allowed)", what.rx_queues, interface, most_.queues),
             changes_policy(backend_));
    bool const is_probe = what.probe_memory != 0;
    if (is_probe)
        check_memory(interface, what.probe_memory);
    auto const size = backend_.dmabuf_size(is_probe ? -1 : dmabuf);
    check_memory(interface, size);
    auto nic = backend_.lease(what, dmabuf, notice_);
    detail::opened_reply reply{.dmabuf_id = nic->dmabuf_id(),
                               .page_size = static_cast<std::uint32_t>(nic->page_size()),
                               .array_tokens = nic->has_array_tokens(),
                               .steers = nic->steers(),
                               .ring = nic->ring(),
                               .queues = nic->queues()};
    nic_ = std::move(nic);
    backend_.on_opened({.interface = interface,
                        .most = most_,
                        .memory = size,
                        .dmabuf = reply.dmabuf_id,
                        .page_size = reply.page_size,
                        .queues = reply.queues});
    return reply;
}

void client::check_memory(std::string_view interface, std::uint64_t size) const
{
    if (size > most_.memory)
        fail(EACCES, "open",
             fmt::format("{} with {} of memory ({} allowed)", interface, detail::size_text(size),
                         detail::size_text(most_.memory)),
             changes_policy(backend_));
}

detail::daemon_reply client::steer(detail::daemon_request const& what, int socket)
{
    auto const* const flow = std::get_if<detail::steer_flow_request>(&what);
    std::vector<asio::ip::tcp::endpoint> ends;
    if (flow != nullptr) {
        backend_.check_flow(socket, *flow);
        ends.push_back(flow->local);
    } else {
        ends = backend_.check_listener(socket, std::get<detail::steer_port_request>(what));
    }
    if (auto const now = count_rules(); now + ends.size() > most_.flows)
        fail(EDQUOT, "steer", fmt::format("a flow that needs {} rules, besides {} existing ones", ends.size(), now),
             changes_policy(backend_));
    error_code code;
    diagnostics why;
    std::vector<client_rule> made;
    for (auto const& local : ends) {
        auto rule = flow == nullptr ? nic_->steer_port(socket, local, false, code, why)
                    : flow->exact   ? nic_->move_flow(socket, flow->local, flow->remote, code, why)
                                    : nic_->steer_flow(socket, flow->local, flow->remote, code, why);
        if (rule == nullptr)
            throw system_error{code, std::move(why)};
        made.push_back({detail::on_the_wire(local), std::move(rule)});
    }
    auto const count = made.size();
    rules_.emplace(++last_rule_, std::move(made));
    backend_.on_rules_changed(count_rules(), count, 0);
    return detail::steered_reply{last_rule_};
}

detail::daemon_reply client::unsteer(detail::unsteer_request const& what)
{
    if (rules_.erase(what.rule) == 0)
        fail(ENOENT, "unsteer", fmt::format("rule {}", what.rule));
    backend_.on_rules_changed(count_rules(), 0, 0);
    return detail::unsteered_reply{};
}

std::size_t client::count_rules() const noexcept
{
    std::size_t count = 0;
    for (auto const& [number, held] : rules_)
        count += held.size();
    return count;
}

void client::check_endpoints()
{
    if (rules_.empty())
        return;
    std::set<asio::ip::tcp::endpoint> ends;
    for (auto const& [number, held] : rules_) {
        for (auto const& one : held)
            ends.insert(one.local);
    }
    for (auto const& end : backend_.find_lost(ends)) {
        std::size_t taken = 0;
        for (auto& [number, held] : rules_)
            taken += std::erase_if(held, [&](auto const& one) { return one.local == end; });
        std::erase_if(rules_, [](auto const& each) { return each.second.empty(); });
        backend_.on_rules_changed(count_rules(), 0, taken);
        notice_(
            fmt::format("gpurxd removed {} rules for {} port {}: another user has sockets there, too, or the address "
                        "no longer belongs to this host",
                        taken, end.address().to_string(), end.port()));
    }
}

namespace {

// To a client that does not listen nothing more is said.
class notice_sender {
  public:
    explicit notice_sender(daemon_channel& connection) : connection_{connection} {}

    void send(std::string_view sentence) noexcept
    {
        if (failed_)
            return;
        try {
            connection_.send(detail::encode(detail::notice_reply{std::string{sentence}}));
        } catch (std::exception const&) {
            failed_ = true;
        }
    }

  private:
    daemon_channel& connection_;
    bool failed_ = false;
};

detail::refused_reply objection(detail::message_damage const& damage)
{
    return {detail::errno_code(damage.other_version ? EPROTONOSUPPORT : EPROTO),
            {.operation = "understand",
             .object = "a request: " + damage.what,
             .kernel_message = {},
             .advice = damage.other_version ? "update the program, or gpurxd" : ""}};
}

// Nothing: it can go on.
std::optional<close_reason> answer_one(daemon_channel& connection, client_backend& backend, client& served,
                                       detail::channel_message message)
{
    auto const parsed = message.excessive
                            ? detail::message_damage{"longer than a message, or with more than one descriptor"}
                            : detail::parse_daemon_request(message.bytes);
    if (auto const* const damage = std::get_if<detail::message_damage>(&parsed)) {
        auto const said = objection(*damage);
        backend.on_refused(request_kind::message, said.code, said.why);
        connection.send(detail::encode(said));
        return close_reason::not_ours;
    }
    auto const& request = std::get<detail::daemon_request>(parsed);
    auto const pause = served.wait_before(request, rate_limit::clock::now());
    if (pause.count() > 0 && connection.wait_for_end(std::chrono::ceil<milliseconds>(pause)))
        return close_reason::hung_up;
    connection.send(detail::encode(served.handle(request, std::move(message.descriptor))));
    if (!served.has_opened())
        return close_reason::refused;
    return std::nullopt;
}

close_reason serve_until_end(daemon_channel& connection, client_backend& backend, client& served, milliseconds timeout,
                             milliseconds check_interval)
{
    using clock = std::chrono::steady_clock;
    for (auto next_check = clock::now() + check_interval;;) {
        auto const there = connection.wait(served.has_opened() ? check_interval : timeout);
        // Also of a client that never leaves it the time.
        if (served.has_opened() && clock::now() >= next_check) {
            served.check_endpoints();
            next_check = clock::now() + check_interval;
        }
        if (there == channel_wait::closed)
            return close_reason::hung_up;
        if (there == channel_wait::timeout && served.has_opened())
            continue;
        if (there == channel_wait::timeout)
            return close_reason::silent;
        auto message = connection.receive();
        if (!message)
            return close_reason::hung_up;
        if (auto const end = answer_one(connection, backend, served, std::move(*message)))
            return *end;
    }
}

}  // namespace

close_reason serve(daemon_channel& connection, client_backend& backend, milliseconds timeout,
                   milliseconds check_interval)
{
    notice_sender notices{connection};
    client served{backend, [&](std::string_view sentence) { notices.send(sentence); }};
    try {
        return serve_until_end(connection, backend, served, timeout, check_interval);
    } catch (system_error const& error) {
        // It was killed before it had its answer.
        if (error.code() == boost::system::errc::broken_pipe || error.code() == boost::system::errc::connection_reset)
            return close_reason::hung_up;
        throw;
    }
}

}  // namespace gpurx::gpurxd
