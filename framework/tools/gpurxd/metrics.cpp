// SPDX-License-Identifier: Apache-2.0
#include "metrics.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <map>
#include <utility>

#include "session/metrics_text.hpp"

namespace gpurx::gpurxd {

namespace {

constexpr std::array<std::string_view, request_kinds> request_names{"connect", "open",    "steer",
                                                                    "unsteer", "message", "probe"};
constexpr std::array<std::string_view, refusal_reasons> reason_names{"policy",    "crowded", "flows",    "descriptor",
                                                                     "elsewhere", "order",   "protocol", "nic"};

// The share of one user in one interface.
struct share {
    std::uint64_t clients = 0;
    std::uint64_t queues = 0;
    std::uint64_t memory = 0;
    std::uint64_t rules = 0;
    limits most;  // of the client that was found last: they differ if the policy was changed meanwhile
};
using shares = std::map<std::pair<std::string, std::uint32_t>, share>;  // by interface and user

shares shares_of(daemon_metrics const& counted)
{
    shares all;
    for (auto const& client : counted.clients) {
        auto& mine = all[{client.interface, client.uid}];
        ++mine.clients;
        mine.queues += client.queues.size();
        mine.memory += client.memory;
        mine.rules += client.rules;
        mine.most = client.most;
    }
    return all;
}

class page {
  public:
    void begin(std::string_view name, std::string_view help)
    {
        name_ = name;
        auto const* const type = name.ends_with("_total") ? "counter" : "gauge";
        fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
    }
    void add(std::string_view labels, std::uint64_t value)
    {
        fmt::format_to(std::back_inserter(text_), "{}{} {}\n", name_,
                       labels.empty() ? "" : fmt::format("{{{}}}", labels), value);
    }
    [[nodiscard]] std::string take() { return std::move(text_); }

  private:
    std::string_view name_;
    std::string text_;
};

void add_counts(page& to, daemon_metrics const& counted)
{
    to.begin("gpurxd_connections_total", "Accepted connections of programs.");
    to.add({}, counted.connections);
    to.begin("gpurxd_refusals_total", "Refused requests, by kind and reason.");
    for (std::size_t what = 0; what < request_kinds; ++what)
        for (std::size_t why = 0; why < refusal_reasons; ++why)
            to.add(fmt::format(R"(request="{}",reason="{}")", request_names[what], reason_names[why]),
                   counted.refusals[what][why]);
    to.begin("gpurxd_rules_made_total", "Rules added to NICs for clients.");
    to.add({}, counted.rules_made);
    to.begin("gpurxd_rules_taken_away_total", "Rules removed from clients because other users had the same ports.");
    to.add({}, counted.rules_taken_away);
}

void add_shares(page& to, shares const& all)
{
    auto const each = [&](std::string_view name, std::string_view help, std::uint64_t share::*counter) {
        to.begin(name, help);
        for (auto const& [whose, what] : all)
            to.add(fmt::format(R"(interface="{}",user="{}")", detail::escaped_label(whose.first), whose.second),
                   what.*counter);
    };
    if (all.empty())
        return;
    each("gpurxd_clients", "Sessions of a user with queues of an interface.", &share::clients);
    each("gpurxd_queues", "RX queues of a user's sessions.", &share::queues);
    each("gpurxd_memory_bytes", "Memory of a user's sessions that is bound to queues.", &share::memory);
    each("gpurxd_rules", "Rules on the NIC that bring flows to a user's queues.", &share::rules);
    to.begin("gpurxd_limit", "Limits of the policy for a session of a user, and for the number of sessions.");
    for (auto const& [whose, what] : all) {
        std::array<std::pair<std::string_view, std::uint64_t>, 6> const most{{{"queues", what.most.queues},
                                                                              {"memory_bytes", what.most.memory},
                                                                              {"flows", what.most.flows},
                                                                              {"rules_per_second", what.most.rules},
                                                                              {"clients", what.most.clients},
                                                                              {"opens_per_minute", what.most.opens}}};
        for (auto const& [limit, value] : most)
            to.add(fmt::format(R"(interface="{}",user="{}",limit="{}")", detail::escaped_label(whose.first),
                               whose.second, limit),
                   value);
    }
}

using losses = detail::netdev::rx_losses;

void add_losses(page& to, std::span<interface_metrics const> seen, std::string_view name, std::string_view help,
                std::optional<std::uint64_t> losses::*counter)
{
    bool begun = false;
    for (auto const& one : seen) {
        for (auto const& queue : one.losses) {
            if (!(queue.*counter))
                continue;
            if (!std::exchange(begun, true))
                to.begin(name, help);
            to.add(fmt::format(R"(interface="{}",queue="{}")", detail::escaped_label(one.interface), queue.queue),
                   *(queue.*counter));
        }
    }
}

void add_interfaces(page& to, std::span<interface_metrics const> seen)
{
    if (seen.empty())
        return;
    to.begin("gpurxd_pool_pages_in_flight", "Pages of clients in use by the NIC, the kernel or programs.");
    for (auto const& one : seen)
        to.add(fmt::format(R"(interface="{}")", detail::escaped_label(one.interface)), one.pages_in_flight);
    add_losses(to, seen, "gpurxd_queue_allocation_failures_total",
               "Times that the driver found no free page for a client's queue.", &losses::allocation_failures);
    add_losses(to, seen, "gpurxd_queue_overruns_total", "Packets that a client's queue dropped without a free buffer.",
               &losses::overruns);
    add_losses(to, seen, "gpurxd_queue_drops_total", "Packets that a client's queue dropped.", &losses::drops);
}

}  // namespace

refusal_reason reason_of(request_kind what, error_code code) noexcept
{
    if (code.category() != boost::system::system_category() && code.category() != boost::system::generic_category())
        return refusal_reason::nic;
    switch (code.value()) {
        case EACCES:
            return refusal_reason::policy;
        case EUSERS:
        case EAGAIN:
            return refusal_reason::crowded;
        case EDQUOT:
            return refusal_reason::flows;
        case EBADF:
        case ENOTSOCK:
            return refusal_reason::descriptor;
        case EXDEV:
            return refusal_reason::elsewhere;
        case EALREADY:
        case ENOTCONN:
            return refusal_reason::order;
        case EPROTO:
        case EPROTONOSUPPORT:
            return refusal_reason::protocol;
        case ENOENT:
            return what == request_kind::unsteer ? refusal_reason::order : refusal_reason::nic;
        default:
            return refusal_reason::nic;
    }
}

std::string metrics_page(std::string_view version, daemon_metrics const& counted,
                         std::span<interface_metrics const> seen)
{
    page text;
    text.begin("gpurxd_build_info", "Version of the running gpurxd.");
    text.add(fmt::format(R"(version="{}")", detail::escaped_label(version)), 1);
    add_counts(text, counted);
    add_shares(text, shares_of(counted));
    add_interfaces(text, seen);
    return text.take();
}

}  // namespace gpurx::gpurxd
