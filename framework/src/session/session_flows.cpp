// SPDX-License-Identifier: Apache-2.0
//
// The flows of a session: their places, what they have on loan, and whether they can go on.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/byte_size.hpp"
#include "session_state.hpp"

namespace gpurx::detail {

flow_place::flow_place(std::shared_ptr<session_state> owner) noexcept : session_{std::move(owner)} {}

flow_place::~flow_place()
{
    session_->leave(*this);
    session_->unsteer(std::move(rule_));
}

void flow_place::set_waiting(flow_wait what) noexcept
{
    waiting_.store(what);
    if (what == flow_wait::data)
        session_->flow_waits();
}

void flow_place::set_holder(page_holder const* holder) noexcept
{
    std::scoped_lock const lock{session_->mutex_};
    holder_ = holder;
}

void flow_place::set_socket(int fd) noexcept
{
    std::scoped_lock const lock{session_->mutex_};
    socket_ = fd;
}

std::unique_ptr<flow_place> session_state::admit(error_code& code)
{
    if (refuses_child(code))
        return nullptr;
    code = memory_->failure(true);
    if (code)
        return nullptr;
    auto flow = std::make_unique<flow_place>(shared_from_this());
    std::scoped_lock const lock{mutex_};
    if (flows_.size() >= options_.max_flows) {
        code = errc::too_many_flows;
        return nullptr;
    }
    flows_.push_back(flow.get());
    return flow;
}

unsigned session_state::free_places() const
{
    std::scoped_lock const lock{mutex_};
    return options_.max_flows - static_cast<unsigned>(std::min<std::size_t>(flows_.size(), options_.max_flows));
}

void session_state::leave(flow_place& flow) noexcept
{
    std::scoped_lock const lock{mutex_};
    if (std::erase(flows_, &flow) > 0)
        ended_ = ended_ + flow.counters.snapshot();
}

void session_state::tokens_taken(std::uint64_t count) noexcept
{
    auto const now = tokens_out_.fetch_add(count, std::memory_order_relaxed) + count;
    auto most = tokens_high_water_.load(std::memory_order_relaxed);
    while (most < now && !tokens_high_water_.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
}

void session_state::tokens_returned(std::uint64_t count) noexcept
{
    tokens_out_.fetch_sub(count, std::memory_order_relaxed);
}

stats session_state::total() const
{
    stats sum;
    {
        std::scoped_lock const lock{mutex_};
        sum = ended_;
        for (auto const* flow : flows_)
            sum = sum + flow->counters.snapshot();
    }
    if (nic_) {
        sum.tokens_out = tokens_out_.load(std::memory_order_relaxed);
        sum.tokens_high_water = tokens_high_water_.load(std::memory_order_relaxed);
    }
    return sum;
}

void session_state::flow_waits() noexcept
{
    if (watchdog_)
        watchdog_->flow_waits();
}

std::optional<lock_up_sample> session_state::look() noexcept
{
    lock_up_sample sample;
    sample.at = std::chrono::steady_clock::now();
    sample.pages_on_loan = tokens_out_.load(std::memory_order_relaxed);
    bool any_waits = false;
    {
        std::scoped_lock const lock{mutex_};
        sample.bytes_delivered = ended_.bytes();
        for (auto const* flow : flows_) {
            sample.bytes_delivered += flow->counters.snapshot().bytes();
            if (flow->waiting_.load() != flow_wait::data)
                continue;
            any_waits = true;
            sample.bytes_held += bytes_held(flow->socket_);
        }
    }
    if (!any_waits) {
        dry_.pause();
        return std::nullopt;
    }
    if (sample.needs_pool())
        sample.pool = nic_->sample();
    if (sample.pool)
        note_in_flight(std::min(sample.pool->in_flight, page_count()));
    note_dryness(sample);
    return sample;
}

void session_state::note_in_flight(std::uint64_t pages) const noexcept
{
    auto most = in_flight_high_water_.load(std::memory_order_relaxed);
    while (most < pages && !in_flight_high_water_.compare_exchange_weak(most, pages, std::memory_order_relaxed)) {
    }
}

void session_state::note_dryness(lock_up_sample const& sample) noexcept
{
    if (sample.pool && sample.pool->allocation_failures)
        dry_.look(sample.at, is_dry(*sample.pool, page_count(), nic_->page_size()), *sample.pool->allocation_failures);
    else
        dry_.pause();
    dry_time_.store(dry_.total(), std::memory_order_relaxed);
}

void session_state::end_a_flow() noexcept
{
    std::scoped_lock const lock{mutex_};
    flow_place* victim = nullptr;
    std::uint64_t most = 0;
    for (auto* flow : flows_) {
        if (flow->waiting_.load() != flow_wait::data)
            continue;
        if (auto const held = bytes_held(flow->socket_); held > most) {
            most = held;
            victim = flow;
        }
    }
    if (victim == nullptr)
        return;
    victim->mark_locked_up();
    abort_connection(victim->socket_);
}

std::string session_state::holders() const
{
    auto const page = nic_->page_size();
    std::vector<std::string> words;
    std::size_t all = 0;
    for (auto const* flow : flows_) {
        auto const loans = flow->on_loan.load() / page;
        auto const reads = flow->in_reads.load() / page;
        all += loans + reads;
        if (loans > 0)
            words.push_back(fmt::format("{} on loan from {}", loans, connection_name(flow->socket_)));
        if (reads > 0)
            words.push_back(
                fmt::format("{} read from {} and waiting for GPU streams", reads, connection_name(flow->socket_)));
    }
    return fmt::format("the program holds {} of {} pages ({})", all, memory_->span().size() / page,
                       fmt::join(words, ", "));
}

void session_state::tell_starved() noexcept
{
    try {
        std::string text;
        {
            std::scoped_lock const lock{mutex_};
            for (auto* flow : flows_) {
                if (flow->waiting_.load() != flow_wait::data)
                    continue;
                flow->counters.starved.add(1);
                text += fmt::format("{}{}", text.empty() ? "" : ", ", connection_name(flow->socket_));
            }
            text = fmt::format(
                "{}: no page is free for arriving data; waiting: {}; {}: release loans sooner, lower "
                "loan_limit, or give more memory",
                options_.interface, text, holders());
        }
        tell(text);
    } catch (std::bad_alloc const&) {
        // Said when there is memory to say it, at the next time.
    }
}

std::string session_state::explain() const
{
    auto text = explanation_;
    if (!nic_)
        return text;
    auto const account = pool();
    if (account)
        text.append(1, '\n').append(describe(*account));
    std::scoped_lock const lock{mutex_};
    auto const dry = account && is_dry({.in_flight = account->pages - account->free, .allocation_failures = {}},
                                       account->pages, account->page_size);
    bool any_starves = false;
    for (auto const* flow : flows_) {
        auto const waits = flow->waiting_.load();
        if (waits == flow_wait::data)
            any_starves = any_starves || dry;
        else if (waits == flow_wait::loans)
            text += fmt::format("\nwaits for its loans: {}: {} of {} on loan", connection_name(flow->socket_),
                                size_text(flow->on_loan.load()), size_text(loan_limit_));
        else if (waits == flow_wait::streams)
            text +=
                fmt::format("\nwaits for GPU streams: {}: they hold {} of {} that reads may take",
                            connection_name(flow->socket_), size_text(flow->in_reads.load()), size_text(read_share_));
    }
    if (any_starves)
        text += fmt::format("\nstarved: no page is free for arriving data; {}", holders());
    return text;
}

}  // namespace gpurx::detail
