// SPDX-License-Identifier: Apache-2.0
#include "stream_fsm.hpp"

#include <algorithm>
#include <boost/asio/error.hpp>

namespace gpurx::detail {

namespace {

// Of the call that met it: the bytes are still there for another.
bool is_of_one_call(error_code met) noexcept
{
    return met == asio::error::would_block || met == asio::error::no_buffer_space || met == asio::error::no_memory ||
           met == asio::error::invalid_argument || met == asio::error::fault || met == asio::error::no_descriptors ||
           met.category() == cuda_category();
}

}  // namespace

error_code end_of_stream(error_code met, bool locked_up) noexcept
{
    if (!met || is_of_one_call(met))
        return {};
    return locked_up ? make_error_code(errc::memory_locked_up) : met;
}

namespace {

using what = stream_action::what;

stream_action done(error_code code) noexcept
{
    return {.kind = what::done, .bytes = 0, .code = code};
}

}  // namespace

stream_action receive_fsm::resume(stream_facts const& now, stream_result const& last) noexcept
{
    switch (at_) {
        case point::start:
            if (at_most_ == 0)
                return done({});
            if (!now.open)
                return done(asio::error::not_connected);
            if (enough_ > now.loan_limit || enough_ == unbounded)
                return done(errc::beyond_loan_limit);
            return attempt(now);

        case point::received:
            // Cancelled or not: what was received is delivered, if it is enough.
            if (!last.code)
                return attempt(now);
            if (last.code == asio::error::would_block)
                return wait(what::wait_readable);
            if (last.code == asio::error::no_buffer_space)
                return wait(what::wait_pages);
            return done(now.over ? now.over : last.code);

        case point::waited:
            if (!now.open || last.cancelled != asio::cancellation_type::none)
                return done(asio::error::operation_aborted);
            return last.code ? done(last.code) : attempt(now);
    }
    return done(asio::error::operation_aborted);
}

stream_action receive_fsm::attempt(stream_facts const& now) noexcept
{
    if (is_enough(now.carried))
        return now.loan_budget == 0 && !now.carried_lent ? wait(what::wait_budget) : lend(now.carried);
    if (now.over)
        return done(now.over);
    if (now.loan_budget <= now.gathered) {
        // Whole pages count. Where no loan is left that could return, a wait would have no end.
        if (now.loan_budget == now.loan_limit)
            return done(errc::beyond_loan_limit);
        return wait(what::wait_budget, now.gathered);
    }
    if (now.carried >= end_of_turn_) {
        end_of_turn_ = now.carried + bytes_in_turn;
        return wait(what::yield);
    }
    if (now.drained)
        return wait(what::wait_readable);
    at_ = point::received;
    return {
        .kind = what::receive, .bytes = std::min(now.loan_budget - now.gathered, at_most_ - now.carried), .code = {}};
}

stream_action receive_fsm::wait(what kind, std::size_t bytes) noexcept
{
    at_ = point::waited;
    return {.kind = kind, .bytes = bytes, .code = {}};
}

stream_action read_fsm::resume(stream_facts const& now, stream_result const& last) noexcept
{
    switch (at_) {
        case point::start:
            if (size_ == 0)
                return done({});
            if (refused_)
                return done(refused_);
            return now.open ? proceed(now) : done(asio::error::not_connected);
        case point::placed:
            placed_ += last.bytes;
            in_turn_ += last.bytes;
            return last.code ? done(last.code) : proceed(now);
        case point::received:
            return after_receive(now, last);
        case point::waited:
            return after_wait(now, last);
    }
    return done(asio::error::operation_aborted);
}

stream_action read_fsm::proceed(stream_facts const& now) noexcept
{
    auto const missing = size_ - placed_;
    if (missing == 0)
        return done({});
    if (now.carried > 0 && !now.stream_full)
        return go(point::placed, what::place, missing);
    if (placed_ >= enough_)
        return done({});
    if (now.carried == 0 && now.over)
        return done(now.over);
    if (in_turn_ >= bytes_in_turn) {
        in_turn_ = 0;
        return go(point::waited, what::yield);
    }
    // Nothing is received for it either: what comes in meanwhile makes one large batch in the place of many small ones.
    if (now.stream_full)
        return go(point::waited, what::wait_streams);
    if (now.drained)
        return go(point::waited, what::wait_readable);
    if (way_ == way::in_place)
        return go(point::received, what::receive_in_place, missing);
    // Of their own, and not the budget of loans: or a program that holds its limit in loans could read no more, and
    // pages that wait for a stream which stands still would take all the memory.
    if (now.read_budget == 0)
        return go(point::waited, what::wait_streams);
    return go(point::received, what::receive, std::min(now.read_budget, std::max(missing, now.read_ahead)));
}

stream_action read_fsm::after_receive(stream_facts const& now, stream_result const& last) noexcept
{
    if (!last.code) {
        placed_ += last.bytes;
        in_turn_ += last.bytes;
        return proceed(now);
    }
    if (last.code == asio::error::would_block)
        return go(point::waited, what::wait_readable);
    if (last.code == asio::error::no_buffer_space)
        return go(point::waited, what::wait_pages);
    return done(now.over ? now.over : last.code);
}

stream_action read_fsm::after_wait(stream_facts const& now, stream_result const& last) noexcept
{
    using asio::cancellation_type;
    if (!now.open)
        return done(asio::error::operation_aborted);
    // `total` promises that nothing has happened: after the first byte it has come too late.
    auto const heeded = placed_ == 0
                            ? cancellation_type::terminal | cancellation_type::partial | cancellation_type::total
                            : cancellation_type::terminal | cancellation_type::partial;
    if ((last.cancelled & heeded) != cancellation_type::none)
        return done(asio::error::operation_aborted);
    auto const too_late = last.code == asio::error::operation_aborted && last.cancelled != cancellation_type::none;
    return last.code && !too_late ? done(last.code) : proceed(now);
}

stream_action read_fsm::go(point next, what kind, std::size_t bytes) noexcept
{
    at_ = next;
    return {.kind = kind, .bytes = bytes, .code = {}};
}

stream_action read_fsm::done(error_code code) const noexcept
{
    return {.kind = what::done, .bytes = placed_, .code = code};
}

}  // namespace gpurx::detail
