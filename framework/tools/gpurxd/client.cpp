// SPDX-License-Identifier: Apache-2.0
#include "client.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "memory/byte_size.hpp"
#include "nic/failure.hpp"

namespace gpurx::gpurxd {

using detail::fail;

namespace {

constexpr char changes_policy[] = "ask for less, or have the policy of gpurxd changed (/etc/gpurx/gpurxd.conf)";

asked kind_of(detail::daemon_request const& what)
{
    if (std::holds_alternative<detail::open_request>(what))
        return asked::open;
    return std::holds_alternative<detail::unsteer_request>(what) ? asked::unsteer : asked::steer;
}

}  // namespace

client::~client()
{
    rules_.clear();
    nic_.reset();
}

rule_rate::clock::duration client::wait_before(detail::daemon_request const& what, rule_rate::clock::time_point now)
{
    auto const steers = std::holds_alternative<detail::steer_flow_request>(what) ||
                        std::holds_alternative<detail::steer_port_request>(what);
    return steers && rate_ ? rate_->next(now) : rule_rate::clock::duration::zero();
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
        around_.has_refused(kind_of(what), error.code());
        return detail::refused_reply{error.code(), error.why()};
    }
}

detail::daemon_reply client::open(detail::open_request const& what, int dmabuf)
{
    auto const& interface = what.interface;
    if (rate_)
        fail(EALREADY, "open", interface, "make a connection for each session");
    most_ = around_.admit(interface);
    rate_.emplace(most_.rules);
    if (what.rx_queues == 0 || what.rx_queues > most_.queues)
        fail(EACCES, "open",
             fmt::format("{} queues of {}, of which {} are allowed", what.rx_queues, interface, most_.queues),
             changes_policy);
    auto const size = around_.dmabuf_size(dmabuf);
    if (size > most_.memory)
        fail(EACCES, "open",
             fmt::format("{} with {} of memory, of which {} are allowed", interface, detail::size_text(size),
                         detail::size_text(most_.memory)),
             changes_policy);
    auto nic = around_.lease(what, dmabuf, notice_);
    detail::opened_reply reply{.dmabuf_id = nic->dmabuf_id(),
                               .page_size = static_cast<std::uint32_t>(nic->page_size()),
                               .array_tokens = nic->has_array_tokens(),
                               .ring = nic->ring(),
                               .queues = nic->queues()};
    nic_ = std::move(nic);
    around_.has_opened({.interface = interface,
                        .most = most_,
                        .memory = size,
                        .dmabuf = reply.dmabuf_id,
                        .page_size = reply.page_size,
                        .queues = reply.queues});
    return reply;
}

detail::daemon_reply client::steer(detail::daemon_request const& what, int socket)
{
    if (rules_.size() >= most_.flows)
        fail(EDQUOT, "steer", fmt::format("a flow, as {} are steered", rules_.size()), changes_policy);
    error_code code;
    diagnostics why;
    held_rule made;
    if (auto const* const flow = std::get_if<detail::steer_flow_request>(&what)) {
        around_.check_flow(socket, *flow);
        made = {flow->local.port(), nic_->steer_flow(socket, flow->local, flow->remote, code, why)};
    } else {
        auto const& port = std::get<detail::steer_port_request>(what);
        around_.check_listener(socket, port);
        made = {port.local.port(), nic_->steer_port(socket, port.local, port.also_v4, code, why)};
    }
    if (made.rule == nullptr)
        throw system_error{code, std::move(why)};
    rules_.emplace(++last_rule_, std::move(made));
    around_.has_rules(rules_.size(), 1, 0);
    return detail::steered_reply{last_rule_};
}

detail::daemon_reply client::unsteer(detail::unsteer_request const& what)
{
    if (rules_.erase(what.rule) == 0)
        fail(ENOENT, "unsteer", fmt::format("rule {}", what.rule));
    around_.has_rules(rules_.size(), 0, 0);
    return detail::unsteered_reply{};
}

void client::look_at_ports()
{
    if (rules_.empty())
        return;
    std::set<std::uint16_t> ports;
    for (auto const& [number, held] : rules_)
        ports.insert(held.port);
    for (auto const port : around_.shared_of(ports)) {
        auto const taken = std::erase_if(rules_, [port](auto const& each) { return each.second.port == port; });
        around_.has_rules(rules_.size(), 0, taken);
        notice_(fmt::format("{} rules for port {} were taken away: another user has sockets on it, too", taken, port));
    }
}

}  // namespace gpurx::gpurxd
