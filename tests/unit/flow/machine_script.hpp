// SPDX-License-Identifier: Apache-2.0
//
// Runs receive_fsm and read_fsm against a script: what it is told, and what it must answer.
#pragma once

#include <boost/asio/error.hpp>
#include <catch2/catch_test_macros.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "flow/stream_fsm.hpp"

namespace gpurx::detail {

inline std::ostream& operator<<(std::ostream& out, stream_action const& action)
{
    static constexpr char const* names[] = {"receive",      "receive_in_place", "place", "wait_readable", "wait_budget",
                                            "wait_streams", "wait_pages",       "yield", "done"};
    return out << names[static_cast<int>(action.kind)] << ' ' << action.bytes << " (" << action.code.message() << ')';
}

}  // namespace gpurx::detail

namespace gpurx::test {

using detail::stream_action;
using detail::stream_facts;
using detail::stream_result;
using what = stream_action::what;
using cancel = asio::cancellation_type;

inline constexpr std::size_t plenty = 1 << 20;

inline stream_facts const connected{
    .open = true,
    .carried = 0,
    .carried_lent = false,
    .gathered = 0,
    .loan_limit = plenty,
    .loan_budget = plenty,
    .read_budget = plenty,
    .read_ahead = detail::unbounded,
    .drained = false,
    .stream_full = false,
    .over = {},
};

inline stream_facts carrying(std::size_t bytes)
{
    auto now = connected;
    now.carried = bytes;
    return now;
}
inline stream_facts with_loan_budget(std::size_t bytes)
{
    auto now = connected;
    now.loan_budget = bytes;
    return now;
}
inline stream_facts with_read_budget(std::size_t bytes)
{
    auto now = connected;
    now.read_budget = bytes;
    return now;
}
inline stream_facts with_full_stream(stream_facts now = connected)
{
    now.stream_full = true;
    return now;
}
inline stream_facts drained()
{
    auto now = connected;
    now.drained = true;
    return now;
}
inline stream_facts over(error_code code)
{
    auto now = connected;
    now.over = code;
    return now;
}

inline stream_result failed(error_code code, cancel cancelled = cancel::none)
{
    return {.code = code, .bytes = 0, .cancelled = cancelled};
}
inline stream_result placed(std::size_t bytes)
{
    return {.code = {}, .bytes = bytes, .cancelled = cancel::none};
}

inline stream_action action(what kind, std::size_t bytes = 0)
{
    return {.kind = kind, .bytes = bytes, .code = {}};
}
inline stream_action done(error_code code = {}, std::size_t bytes = 0)
{
    return {.kind = what::done, .bytes = bytes, .code = code};
}

struct exchange {
    stream_facts now;
    stream_result last;
    stream_action answer;
};

struct script {
    std::string name;
    std::vector<exchange> steps;
};

template <class Make>
void play(std::vector<script> const& scripts, Make make)
{
    for (auto const& [name, steps] : scripts) {
        INFO(name);
        auto machine = make();
        for (std::size_t i = 0; i < steps.size(); ++i) {
            INFO("step " << i);
            CHECK(machine.resume(steps[i].now, steps[i].last) == steps[i].answer);
        }
    }
}

}  // namespace gpurx::test
