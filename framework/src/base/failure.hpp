// SPDX-License-Identifier: Apache-2.0
//
// Helpers to throw and to catch gpurx::system_error, and advice for users. No I/O.
#pragma once

#include <boost/system/system_category.hpp>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <gpurx/error.hpp>

namespace gpurx::detail {

[[nodiscard]] inline error_code errno_code(int error) noexcept
{
    return {error, boost::system::system_category()};
}

[[noreturn]] inline void fail(error_code code, std::string operation, std::string object, std::string advice = {})
{
    throw system_error{code, {std::move(operation), std::move(object), {}, std::move(advice)}};
}

[[noreturn]] inline void fail(int error, std::string operation, std::string object, std::string advice = {})
{
    fail(errno_code(error), std::move(operation), std::move(object), std::move(advice));
}

// Runs `action`. If it throws system_error, sets `code` and `why` and returns an empty result.
template <class Action>
auto reporting(error_code& code, diagnostics& why, Action&& action) -> decltype(action())
{
    code.clear();
    why.clear();
    try {
        return action();
    } catch (system_error const& error) {
        code = error.code();
        why = error.why();
    }
    return {};
}

// For a failed co_await: returns a system_error with the diagnostics of `why`. If its construction throws, returns that
// exception.
template <class Why>
[[nodiscard]] std::exception_ptr exception_of(error_code code, Why why) noexcept
try {
    return std::make_exception_ptr(system_error{code, why()});
} catch (...) {
    return std::current_exception();
}

// ---- advice: by an error's code or number, never by the kernel's text ----

// Returns a literal; empty if the error needs no advice.
[[nodiscard]] char const* advice_on(error_code code) noexcept;
// The same for a read.
[[nodiscard]] char const* advice_on_read(error_code code) noexcept;

// `operation` as in diagnostics::operation. `attribute`: the attribute of the request that the kernel rejects, if it
// names one. Returns an empty string if no advice is certain.
[[nodiscard]] std::string advice_on(std::string_view operation, int error, std::string_view attribute = {});

}  // namespace gpurx::detail
