// SPDX-License-Identifier: Apache-2.0
#include "queue_lease.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "base/zcrx_queue.hpp"
#include "lease_steps.hpp"
#include "leased_nic.hpp"
#include "nic/kernel_nic.hpp"

namespace gpurx::detail {

namespace {

using sentences = std::vector<std::string>;

void append(sentences& to, sentences&& from)
{
    std::move(from.begin(), from.end(), std::back_inserter(to));
}

sentences all_of(report&& said)
{
    append(said.done, std::move(said.left));
    return std::move(said.done);
}

}  // namespace

struct queue_lease::state {
    state(config wanted, std::unique_ptr<nic_device> nic, lease_environment surroundings)
        : options{std::move(wanted)}, device{std::move(nic)}, environment{std::move(surroundings)}
    {}

    void tell(sentences const& all) const noexcept
    {
        for (auto const& sentence : all) {
            if (options.notice)
                options.notice(sentence);
        }
    }

    [[nodiscard]] rule_width widest() const noexcept
    {
        return options.rules_by_port_alone ? rule_width::port : rule_width::address;
    }
    // A listener's connections may go there, best first.
    std::vector<steer_target> listener_targets(device_journal& log, sentences& notices);
    // A rule for each match; all or none.
    std::vector<flow_rule> install(device_journal& log, std::vector<flow_match> const& matches,
                                   std::vector<steer_target> const& targets, rule_width most, sentences& notices);
    // Removes those of `rules` that serve nobody else.
    void release(device_journal& log, std::vector<flow_rule> const& rules, report& said) const;

    config options;
    std::unique_ptr<nic_device> device;  // guarded by device_mutex
    lease_environment environment;
    // Page pools of io_uring, by their numbers: those that were there before, and the queues'.
    std::vector<std::uint64_t> pools_of_others;
    std::vector<std::uint64_t> pools;
    // With device_mutex.
    [[nodiscard]] pool_sample look()
    {
        if (!options.parts.empty())
            find_pools();
        for (auto const& queue : acquired.binding->zcrx())
            queue->flush();
        return sample_pool(*device, acquired.binding->id(), acquired.queues, pools);
    }
    // Pools that came with the registrations, and those in their place: a driver makes new pools when its rings change.
    void find_pools()
    {
        auto const has = [](auto const& list, std::uint64_t id) { return std::ranges::find(list, id) != list.end(); };
        auto const all = device->page_pools();
        auto const is_in_use = [&](auto const& pool) { return !pool.detached && has(pools, pool.id); };
        if (std::cmp_greater_equal(std::ranges::count_if(all, is_in_use), acquired.queues.size()))
            return;
        for (auto const& pool : all)
            if (pool.io_uring && pool.ifindex == device->index() && !has(pools_of_others, pool.id) &&
                !has(pools, pool.id))
                pools.push_back(pool.id);
    }

    nic_ring ring;
    pool_sample before;  // losses of the queues when they were leased
    acquisition acquired;
    // One call at a time, with the journal; and one that speaks to the device, which those that only look
    // at it wait for.
    std::mutex mutex;
    std::mutex device_mutex;

    // Guarded by mutex.
    journal_cache journal;
    std::uint64_t last_number = 0;
    std::unordered_map<std::uint64_t, std::vector<flow_rule>> steered;
    std::unordered_map<flow_match, unsigned, flow_match_hash> users;  // of the rules for these packets
    std::size_t turn = 0;                                             // whose queue the next flow gets
    std::optional<std::uint32_t> context;                             // over all queues, once a listener needed it
    bool context_refused = false;
    bool told_of_wider_rules = false;
};

std::vector<steer_target> queue_lease::state::listener_targets(device_journal& log, sentences& notices)
{
    steer_target const first{rule_target::queue, acquired.queues.front()};
    if (acquired.queues.size() == 1)
        return {first};
    if (!context && !context_refused) {
        try {
            context = install_context(log, *device, environment.self, acquired.queues);
        } catch (system_error const& error) {
            context_refused = true;
            notices.push_back(
                fmt::format("all connections to listeners arrive on queue {}, as the NIC cannot spread them over "
                            "several queues: {}",
                            first.number, error.what()));
        }
    }
    if (context_refused)
        return {first};
    return {{rule_target::context, *context}, first};
}

std::vector<flow_rule> queue_lease::state::install(device_journal& log, std::vector<flow_match> const& matches,
                                                   std::vector<steer_target> const& targets, rule_width most,
                                                   sentences& notices)
{
    std::vector<flow_rule> made;
    sentences refused;
    try {
        for (auto const& match : matches)
            made.push_back(install_rule(log, *device, environment.self, match, targets, refused, most));
    } catch (...) {
        report said;
        release(log, made, said);
        throw;
    }
    if (!refused.empty() && !std::exchange(told_of_wider_rules, true)) {
        notices.push_back(fmt::format("this flow and later ones are steered by {} to {} {} instead: {}",
                                      to_string(made.back().match),
                                      made.back().kind == rule_target::queue ? "queue" : "RSS context",
                                      made.back().target, fmt::join(refused, "; ")));
    }
    return made;
}

void queue_lease::state::release(device_journal& log, std::vector<flow_rule> const& rules, report& said) const
{
    for (auto const& rule : rules) {
        if (!users.contains(rule.match))
            remove_rule(log, *device, environment.self, rule, said);
    }
}

class queue_lease::steered final : public steering_rule {
  public:
    steered(queue_lease& lease, std::uint64_t number) noexcept : lease_{lease}, number_{number} {}
    ~steered() override { lease_.unsteer(number_); }

  private:
    queue_lease& lease_;
    std::uint64_t number_;  // the lease's name for it
};

queue_lease::queue_lease(std::unique_ptr<state> made) noexcept : state_{made.release()} {}

std::unique_ptr<queue_lease> queue_lease::open(config options, error_code& code, diagnostics& why)
{
    return reporting(code, why, [&]() -> std::unique_ptr<queue_lease> {
        auto device = std::make_unique<kernel_nic>(options.interface);
        auto environment = this_environment(options.state_directory);
        return open(std::move(options), std::move(device), std::move(environment));
    });
}

std::unique_ptr<queue_lease> queue_lease::open(config options, std::unique_ptr<nic_device> device,
                                               lease_environment environment)
{
    auto made = std::make_unique<state>(std::move(options), std::move(device), std::move(environment));
    auto& self = *made;
    if (self.options.rx_page_size == sys::page_size())
        self.options.rx_page_size = 0;  // a kernel that knows no such choice does just this
    sentences notices;
    try {
        device_journal log{self.environment, *self.device, self.journal};
        if (log.dropped())
            notices.push_back(*log.dropped());
        report said;
        undo_dead(log, *self.device, self.environment, said);
        append(notices, all_of(std::move(said)));
        try {
            self.ring = {self.device->rings().rx_frames, self.device->mtu()};
            if (self.options.check_ring)
                self.options.check_ring(self.ring);
            if (!self.options.parts.empty())
                for (auto const& pool : self.device->page_pools())
                    self.pools_of_others.push_back(pool.id);
            self.acquired =
                acquire(log, *self.device, self.environment,
                        {self.options.rx_queues, self.options.dmabuf_fd, self.options.rx_page_size, self.options.parts},
                        notices);
            self.before = self.look();
        } catch (...) {
            report undone;
            self.acquired.binding.reset();
            undo_lease(log, *self.device, self.environment.self, undone);
            append(notices, std::move(undone.left));
            throw;
        }
    } catch (...) {
        self.tell(notices);
        throw;
    }
    self.tell(notices);
    return std::unique_ptr<queue_lease>{new queue_lease{std::move(made)}};
}

queue_lease::~queue_lease()
{
    if (!born_.is_here())
        return;
    auto& self = *state_;
    report said;
    try {
        device_journal log{self.environment, *self.device, self.journal, journal_use::give_back};
        if (!forget_if_gone(log, *self.device, said))
            undo_steering(log, *self.device, self.environment.self, said);
        self.acquired.binding.reset();
        undo_lease(log, *self.device, self.environment.self, said);
    } catch (std::exception const& error) {
        said.left.push_back(self.options.interface + " could not be restored: " + error.what());
    }
    self.tell(said.left);
}

std::uint32_t queue_lease::dmabuf_id() const noexcept
{
    return state_->acquired.binding->id().value_or(0);
}

zcrx_queues queue_lease::zcrx() const noexcept
{
    return state_->acquired.binding->zcrx();
}

std::vector<unsigned> queue_lease::queues() const
{
    return state_->acquired.queues;
}

std::size_t queue_lease::page_size() const noexcept
{
    return state_->options.rx_page_size != 0 ? state_->options.rx_page_size : sys::page_size();
}

bool queue_lease::has_array_tokens() const noexcept
{
    return state_->acquired.array_tokens;
}

std::unique_ptr<steering_rule> queue_lease::steer_flow(int /*socket*/, asio::ip::tcp::endpoint const& local,
                                                       asio::ip::tcp::endpoint const& remote, error_code& code,
                                                       diagnostics& why)
{
    return steer(local, remote, false, code, why);
}

std::unique_ptr<steering_rule> queue_lease::move_flow(int /*socket*/, asio::ip::tcp::endpoint const& local,
                                                      asio::ip::tcp::endpoint const& remote, error_code& code,
                                                      diagnostics& why)
{
    return steer(local, remote, true, code, why);
}

std::unique_ptr<steering_rule> queue_lease::steer(asio::ip::tcp::endpoint const& local,
                                                  asio::ip::tcp::endpoint const& remote, bool exact, error_code& code,
                                                  diagnostics& why)
{
    return steer_by(code, why, [&](device_journal& log, sentences& notices) {
        auto const& queues = state_->acquired.queues;
        steer_target const target{rule_target::queue, queues[state_->turn++ % queues.size()]};
        return state_->install(log, {match_connection(local, remote)}, {target},
                               exact ? rule_width::exact : state_->widest(), notices);
    });
}

std::unique_ptr<steering_rule> queue_lease::steer_port(int /*socket*/, asio::ip::tcp::endpoint const& local,
                                                       bool also_v4, error_code& code, diagnostics& why)
{
    return steer_by(code, why, [&](device_journal& log, sentences& notices) {
        auto const targets = state_->listener_targets(log, notices);
        return state_->install(log, match_listener(local, also_v4), targets, state_->widest(), notices);
    });
}

// Notices are told when others may steer again.
template <class Install>
std::unique_ptr<steering_rule> queue_lease::steer_by(error_code& code, diagnostics& why, Install install)
{
    return reporting(code, why, [&] {
        sentences notices;
        std::unique_ptr<steering_rule> result;
        {
            std::lock_guard const lock{state_->mutex};
            device_journal log{state_->environment, *state_->device, state_->journal};
            std::lock_guard const device{state_->device_mutex};
            result = keep(install(log, notices));
        }
        state_->tell(notices);
        return result;
    });
}

// Called with the mutex held.
std::unique_ptr<steering_rule> queue_lease::keep(std::vector<flow_rule> rules)
{
    auto const number = ++state_->last_number;
    for (auto const& rule : rules)
        ++state_->users[rule.match];
    state_->steered.emplace(number, std::move(rules));
    return std::make_unique<steered>(*this, number);
}

void queue_lease::unsteer(std::uint64_t number) noexcept
{
    if (!born_.is_here())
        return;
    report said;
    try {
        std::lock_guard const lock{state_->mutex};
        auto const rules = std::move(state_->steered.at(number));
        state_->steered.erase(number);
        for (auto const& rule : rules) {
            if (auto const found = state_->users.find(rule.match); --found->second == 0)
                state_->users.erase(found);
        }
        device_journal log{state_->environment, *state_->device, state_->journal, journal_use::give_back};
        std::lock_guard const device{state_->device_mutex};
        state_->release(log, rules, said);
    } catch (std::exception const& error) {
        said.left.push_back(state_->options.interface + ": a rule could not be removed: " + error.what());
    }
    state_->tell(said.left);
}

nic_ring queue_lease::ring() const noexcept
{
    return state_->ring;
}

std::optional<pool_sample> queue_lease::sample() noexcept
{
    try {
        std::lock_guard const lock{state_->device_mutex};
        return losses_since(state_->before, state_->look());
    } catch (std::exception const&) {
        return std::nullopt;  // the device has gone, or there is no memory for a question to the kernel
    }
}

std::vector<std::string> queue_lease::recover(std::string_view interface, std::string_view state_directory)
{
    kernel_nic device{interface};
    return recover(device, this_environment(std::string{state_directory}));
}

std::vector<std::string> queue_lease::recover(nic_device& device, lease_environment const& environment)
{
    journal_cache nothing;
    device_journal log{environment, device, nothing};
    report said;
    if (log.dropped())
        said.done.push_back(*log.dropped());
    undo_dead(log, device, environment, said);
    log.save();
    return all_of(std::move(said));
}

std::unique_ptr<session_nic> open_nic(queue_lease_config options, error_code& code, diagnostics& why)
{
    auto leased = reporting(code, why, [&]() -> std::unique_ptr<session_nic> {
        kernel_nic device{options.interface};
        if (!is_lessee(device.driver()))
            return nullptr;
        if (!options.parts.empty())
            fail(EOPNOTSUPP, "use leased queues", options.interface + " by io_uring",
                 "transport zcrx needs queues of the NIC itself: use transport devmem here");
        return leased_nic::open({.rx_queues = options.rx_queues,
                                 .rx_page_size = options.rx_page_size,
                                 .dmabuf_fd = options.dmabuf_fd,
                                 .check_ring = options.check_ring},
                                device);
    });
    if (leased || code)
        return leased;
    return queue_lease::open(std::move(options), code, why);
}

namespace {

std::optional<std::uint64_t> since(std::optional<std::uint64_t> const& before,
                                   std::optional<std::uint64_t> const& now) noexcept
{
    return now && before && *now >= *before ? std::optional{*now - *before} : now;
}

// A count that no queue has stays empty.
void add(std::optional<std::uint64_t>& sum, std::optional<std::uint64_t> const& count) noexcept
{
    if (count)
        sum = sum.value_or(0) + *count;
}

}  // namespace

pool_sample sample_pool(nic_device& device, std::optional<std::uint32_t> dmabuf, std::span<unsigned const> queues,
                        std::span<std::uint64_t const> pools)
{
    auto const is_ours = [&](netdev::page_pool const& pool) {
        return dmabuf ? pool.dmabuf == dmabuf : std::ranges::find(pools, pool.id) != pools.end();
    };
    pool_sample result;
    for (auto const& pool : device.page_pools())
        if (is_ours(pool))
            result.in_flight += pool.inflight;
    for (auto const& queue : device.rx_losses()) {
        if (std::ranges::find(queues, queue.queue) == queues.end())
            continue;
        add(result.allocation_failures, queue.allocation_failures);
        add(result.overruns, queue.overruns);
        add(result.drops, queue.drops);
    }
    return result;
}

pool_sample losses_since(pool_sample const& before, pool_sample now) noexcept
{
    now.allocation_failures = since(before.allocation_failures, now.allocation_failures);
    now.overruns = since(before.overruns, now.overruns);
    now.drops = since(before.drops, now.drops);
    return now;
}

}  // namespace gpurx::detail
