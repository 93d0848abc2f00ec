// SPDX-License-Identifier: Apache-2.0
#include "flow_table.hpp"

namespace gpurx::doctor::tap {

void flow_table::take(segment const& what, bool outgoing, moment now)
{
    auto const key = outgoing ? flow_key{what.source, what.destination} : flow_key{what.destination, what.source};
    if (shown_.size() >= most_flows && !shown_.contains(key)) {
        ++others_;
        return;
    }
    auto& counts = shown_[key];
    auto& state = hidden_[key];
    if (counts.first == moment{})
        counts.first = now;
    counts.last = now;
    if (outgoing)
        take_outgoing(what, now, counts, state);
    else
        take_incoming(what, now, counts, state);
    counts.missing = state.order.missing();
}

void flow_table::take_incoming(segment const& what, moment now, flow_counts& counts, hidden& state)
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

void flow_table::take_outgoing(segment const& what, moment now, flow_counts& counts, hidden& state)
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
