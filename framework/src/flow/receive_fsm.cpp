// SPDX-License-Identifier: Apache-2.0
#include "receive_fsm.hpp"

#include <boost/asio/error.hpp>

namespace gpurx::detail {

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
            if (!now.open)
                return done(asio::error::not_connected);
            return attempt(now);

        case point::received:
            // Cancelled or not: what was received is delivered.
            if (!last.code)
                return done({});
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
    if (now.carried == 0 && now.over)
        return done(now.over);
    if (now.loan_budget == 0)
        return wait(what::wait_budget);
    if (now.carried > 0)
        return done({});
    if (now.drained)
        return wait(what::wait_readable);
    at_ = point::received;
    return {.kind = what::receive, .bytes = now.loan_budget, .code = {}};
}

stream_action receive_fsm::wait(what kind) noexcept
{
    at_ = point::waited;
    return {.kind = kind, .bytes = 0, .code = {}};
}

}  // namespace gpurx::detail
