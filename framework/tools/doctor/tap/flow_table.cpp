// SPDX-License-Identifier: Apache-2.0
#include "flow_table.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gpurx::doctor::tap {

namespace {

constexpr std::size_t most_gaps = 64;

// A packet that is put together of many uses up as many ids.
constexpr int largest_step = 256;
// More ids in a row that count up are no coincidence.
constexpr unsigned enough_ids = 4;

}  // namespace

arrival sequence_tracker::take(std::uint32_t sequence, std::uint32_t size, send_mark const& sent, moment now)
{
    if (!started_) {
        started_ = true;
        // Far enough from 0 that what came before has a place.
        first_ = next_ = (std::uint64_t{1} << 32) + sequence;
    }
    auto const begin = unwrap(sequence);
    auto const end = begin + size;
    // With the last byte once more a sender asks whether this end is still there.
    auto const is_question = size == 1 && end == next_;
    if (size == 0 || end <= first_ || is_question)
        return arrival::in_order;
    if (begin >= next_) {
        auto const opens = begin > next_;
        if (opens)
            open({next_, begin, now, sent});
        next_ = end;
        watch_ids(sent);
        return opens ? arrival::behind_gap : arrival::in_order;
    }
    next_ = std::max(next_, end);
    auto const filled = fill(begin, end);
    if (!filled)
        return arrival::retransmitted;
    return was_sent_later(sent, now, *filled) ? arrival::retransmitted : arrival::out_of_order;
}

bool sequence_tracker::was_sent_later(send_mark const& sent, moment now, gap const& than) const noexcept
{
    // Both wrap.
    if (sent.clock && than.sent.clock && *sent.clock != *than.sent.clock)
        return static_cast<std::int32_t>(*sent.clock - *than.sent.clock) > 0;
    if (counted_ids_ >= enough_ids && sent.id && than.sent.id)
        return static_cast<std::int16_t>(*sent.id - *than.sent.id) > 0;
    return now - than.seen >= soon_;
}

void sequence_tracker::watch_ids(send_mark const& sent) noexcept
{
    if (!sent.id)
        return;
    auto const step = last_id_ ? static_cast<std::uint16_t>(*sent.id - *last_id_) : 0;
    counted_ids_ = step > 0 && step <= largest_step ? counted_ids_ + 1 : 0;
    last_id_ = sent.id;
}

unsigned sequence_tracker::acknowledged(std::uint32_t sequence)
{
    if (!started_)
        return 0;
    auto const known = unwrap(sequence);
    auto const end = std::ranges::find_if(gaps_, [known](gap const& one) { return one.end > known; });
    auto const unseen = static_cast<unsigned>(end - gaps_.begin());
    gaps_.erase(gaps_.begin(), end);
    // Bytes that are acknowledged ahead of all that came were not seen, either.
    auto const ahead = known > next_;
    next_ = std::max(next_, known);
    return unseen + (ahead ? 1U : 0U);
}

std::uint64_t sequence_tracker::missing() const noexcept
{
    return std::accumulate(gaps_.begin(), gaps_.end(), std::uint64_t{0},
                           [](std::uint64_t sum, gap const& one) { return sum + (one.end - one.begin); });
}

void sequence_tracker::open(gap const& one)
{
    if (gaps_.size() == most_gaps)
        gaps_.erase(gaps_.begin());
    gaps_.push_back(one);
}

std::optional<sequence_tracker::gap> sequence_tracker::fill(std::uint64_t begin, std::uint64_t end)
{
    std::optional<gap> first;
    std::vector<gap> left;
    for (auto const& one : gaps_) {
        if (one.end <= begin || one.begin >= end) {
            left.push_back(one);
            continue;
        }
        if (!first)
            first = one;
        if (one.begin < begin)
            left.push_back({one.begin, begin, one.seen, one.sent});
        if (one.end > end)
            left.push_back({end, one.end, one.seen, one.sent});
    }
    if (first)
        gaps_ = std::move(left);
    return first;
}

std::uint64_t sequence_tracker::unwrap(std::uint32_t sequence) const noexcept
{
    auto const distance = static_cast<std::int32_t>(sequence - static_cast<std::uint32_t>(next_));
    return next_ + static_cast<std::uint64_t>(static_cast<std::int64_t>(distance));
}

void flow_table::take(segment const& what, bool outgoing, moment now)
{
    auto const key = outgoing ? flow_key{what.source, what.destination} : flow_key{what.destination, what.source};
    if (counts_.size() >= most_flows && !counts_.contains(key)) {
        ++others_;
        return;
    }
    auto& counts = counts_[key];
    auto& state = states_[key];
    if (counts.first == moment{})
        counts.first = now;
    counts.last = now;
    if (outgoing)
        take_outgoing(what, now, counts, state);
    else
        take_incoming(what, now, counts, state);
    counts.missing = state.order.missing();
}

void flow_table::take_incoming(segment const& what, moment now, flow_counts& counts, flow_state& state)
{
    if (what.syn) {
        state.order = {};  // a new connection between the same ends
        if (what.ack && !what.window_scale)
            state.scale = 0;  // the peer takes no part in it
    }
    if (what.ack && state.asked) {
        state.order.set_round_trip(now - *state.asked);
        state.asked.reset();
    }
    auto const order = state.order.take(what.sequence, what.payload + (what.syn || what.fin ? 1U : 0U),
                                        {what.timestamp, what.id}, now);
    counts.gaps += order == arrival::behind_gap;
    counts.out_of_order += order == arrival::out_of_order;
    counts.retransmitted += order == arrival::retransmitted;
    if (what.payload == 0)
        return;
    ++counts.packets;
    counts.bytes += what.payload;
    if (what.readable) {
        ++counts.unsplit;
        counts.unsplit_bytes += what.payload;
    }
}

void flow_table::take_outgoing(segment const& what, moment now, flow_counts& counts, flow_state& state)
{
    ++counts.sent;
    if (what.ack)
        counts.unseen += state.order.acknowledged(what.acknowledgement);
    if (what.rst)
        return;
    if (what.syn) {
        state.asked = now;
        state.scale = what.window_scale.value_or(0);
        counts.scaled = true;
    }
    // The scale does not apply to the window in the segment that says it.
    counts.window = std::uint64_t{what.window} << (what.syn ? 0 : state.scale.value_or(0));
}

}  // namespace gpurx::doctor::tap
