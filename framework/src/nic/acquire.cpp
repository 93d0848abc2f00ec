// SPDX-License-Identifier: Apache-2.0
#include "acquire.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "advice.hpp"
#include "failure.hpp"
#include "queue_plan.hpp"
#include "settings.hpp"

namespace gpurx::detail {

namespace {

constexpr std::chrono::milliseconds busy_retry{20};

// Who uses a queue, in words.
using occupants = std::map<unsigned, std::string>;

std::string user_of(netdev::rx_queue const& queue)
{
    if (queue.dmabuf)
        return fmt::format("memory of binding {}", *queue.dmabuf);
    if (queue.io_uring)
        return "io_uring zero copy";
    return queue.xsk ? "an AF_XDP socket" : "a virtual device";
}

void add_owners(occupants& users, journal const& log)
{
    for (auto const& owner : log.owners) {
        for (unsigned const queue : owner.queues)
            users.emplace(queue, fmt::format("the gpurx session of process {}", owner.key.pid));
    }
}

// Rules and RSS contexts that are not in the journal.
void add_foreign_steering(occupants& users, journal const& log, nic_device& nic)
{
    std::set<std::uint32_t> ours;
    std::set<std::uint32_t> our_contexts;
    for (auto const& owner : log.owners) {
        for (auto const& rule : owner.rules)
            ours.insert(rule.id.value_or(0));
        for (auto const& context : owner.contexts)
            our_contexts.insert(context.id.value_or(0));
    }
    for (auto const& rule : nic.rules()) {
        if (rule.queue && !ours.contains(rule.id))
            users.emplace(*rule.queue, fmt::format("rule {} of somebody else", rule.id));
    }
    for (auto const& context : nic.rss_contexts()) {
        for (unsigned const queue : context.table) {
            if (!our_contexts.contains(context.id))
                users.emplace(queue, fmt::format("RSS context {} of somebody else", context.id));
        }
    }
}

occupants users_of_queues(journal const& log, nic_device& nic)
{
    occupants users;
    add_owners(users, log);
    for (auto const& queue : nic.rx_queues()) {
        if (queue.taken())
            users.emplace(queue.id, user_of(queue));
    }
    add_foreign_steering(users, log, nic);
    return users;
}

[[noreturn]] void refuse_queues(std::string const& interface, unsigned wanted, unsigned most, occupants const& users)
{
    // One is left for other traffic.
    auto const possible = most - std::min(most, 1U);
    auto const object =
        fmt::format("{} ({} queue{} wanted, {} possible)", interface, wanted, wanted == 1 ? "" : "s", possible);
    if (users.empty()) {
        fail(ERANGE, "lease", object, "ask for fewer rx_queues: at least one queue must be left for other traffic");
    }
    std::map<std::string, std::vector<unsigned>> queues_of;
    for (auto const& [queue, by] : users)
        queues_of[by].push_back(queue);
    std::vector<std::string> words;
    words.reserve(queues_of.size());
    for (auto const& [by, queues] : queues_of) {
        words.push_back(
            fmt::format("{} {} used by {}", queues.size() == 1 ? "queue" : "queues", fmt::join(queues, ", "), by));
    }
    fail(make_error_code(errc::queue_busy), "lease", object, fmt::format("{}", fmt::join(words, "; ")));
}

// Calls `attempt` until it returns something, or patience ends: the kernel cleans up after a process that has died, and
// may not be done.
template <class Attempt>
auto with_patience(std::chrono::milliseconds patience, Attempt&& attempt)
{
    auto const deadline = std::chrono::steady_clock::now() + patience;
    for (;;) {
        auto result = attempt(std::chrono::steady_clock::now() >= deadline);
        if (result)
            return result;
        std::this_thread::sleep_for(busy_retry);
    }
}

queue_plan choose_queues(device_journal& log, nic_device& nic, unsigned wanted, std::chrono::milliseconds patience)
{
    return *with_patience(patience, [&](bool last) -> std::optional<queue_plan> {
        auto const channels = nic.channels();
        auto const users = users_of_queues(*log, nic);
        std::set<unsigned> taken;
        for (auto const& [queue, by] : users)
            taken.insert(queue);
        unsigned const most = std::max(most_rx_queues(channels), channels.rx_queues());
        auto plan = plan_queues(channels.rx_queues(), most, taken, wanted);
        if (!plan && (last || users.empty()))
            refuse_queues(nic.name(), wanted, most, users);
        return plan;
    });
}

std::vector<unsigned> lease_queues(device_journal& log, nic_device& nic, lease_environment const& environment,
                                   unsigned wanted)
{
    auto const plan = choose_queues(log, nic, wanted, environment.busy_patience);
    auto const channels = nic.channels();
    if (plan.rx_queues > channels.rx_queues()) {
        auto const raised = with_rx_queues(channels, plan.rx_queues);
        change_setting(log, nic, setting::channels, {raised.rx, raised.tx, raised.combined});
    }
    log.edit().find(environment.self)->queues = plan.queues;
    log.save();
    return plan.queues;
}

struct token_choice {
    token_kind tokens;
    std::optional<bool> autorelease;  // what bind-rx is told
};

token_choice choose_tokens(nic_device& nic, token_kind wanted)
{
    if (!nic.knows_autorelease()) {
        if (wanted == token_kind::array)
            fail(EOPNOTSUPP, "bind-rx", nic.name(), advice_on("bind-rx", EOPNOTSUPP, "autorelease"));
        return {token_kind::xarray, std::nullopt};
    }
    if (wanted == token_kind::xarray)
        return {token_kind::xarray, true};
    return {token_kind::array, false};
}

std::unique_ptr<rx_binding> bind_memory(nic_device& nic, std::vector<unsigned> const& queues,
                                        acquisition_request const& request, std::optional<bool> autorelease,
                                        std::chrono::milliseconds patience)
{
    return with_patience(patience, [&](bool last) -> std::unique_ptr<rx_binding> {
        try {
            return nic.bind_rx(queues, request.dmabuf_fd, request.rx_page_size, autorelease);
        } catch (system_error const& error) {
            bool const busy = error.code() == errno_code(EEXIST) || error.code() == errno_code(EBUSY);
            if (!busy || last)
                throw;
            return nullptr;
        }
    });
}

// Does every queue deliver into our memory now? An interface that is down does not tell.
void check_binding(nic_device& nic, std::vector<unsigned> const& queues, std::uint32_t id,
                   std::vector<std::string>& notices)
{
    auto const present = nic.rx_queues();
    if (present.empty())
        notices.push_back(fmt::format("{} is down: set it up to receive", nic.name()));
    for (unsigned const number : queues) {
        auto const queue =
            std::find_if(present.begin(), present.end(), [number](auto const& one) { return one.id == number; });
        if (queue != present.end() && queue->dmabuf != id) {
            fail(EIO, "bind-rx", fmt::format("{} queue {}", nic.name(), number),
                 "the driver took the memory but does not use it: a fault of the driver");
        }
    }
}

}  // namespace

acquisition acquire(device_journal& log, nic_device& nic, lease_environment const& environment,
                    acquisition_request const& request, std::vector<std::string>& notices)
{
    auto const choice = choose_tokens(nic, request.tokens);
    log.edit().owners.push_back({environment.self, {}, {}, {}, journal_binding{}});
    log.save();

    split_headers(log, nic);
    if (auto const threshold = nic.rings().hds_threshold; threshold)
        change_setting(log, nic, setting::hds_threshold, {0});
    change_setting(log, nic, setting::ntuple_filters, {1});

    acquisition result;
    result.tokens = choice.tokens;
    auto const table = nic.rss_table();
    result.queues = lease_queues(log, nic, environment, request.rx_queues);
    if (table.empty())
        notices.push_back(
            fmt::format("{} has no RSS table: other traffic may arrive on the leased queues", nic.name()));
    avoid_leased_queues(log, nic, table);

    result.binding = bind_memory(nic, result.queues, request, choice.autorelease, environment.busy_patience);
    log.edit().find(environment.self)->binding = journal_binding{result.binding->id()};
    log.save();
    check_binding(nic, result.queues, result.binding->id(), notices);
    return result;
}

}  // namespace gpurx::detail
