// SPDX-License-Identifier: Apache-2.0
//
// How code reports what went wrong: gpurx::system_error with the names filled in, and what a user can do about it. No
// I/O.
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

// Runs `action` and turns what it throws into `code` and `why`.
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

// For a failed co_await: returns a system_error with the diagnostics of `why`, or the exception that making it has
// thrown.
template <class Why>
[[nodiscard]] std::exception_ptr exception_of(error_code code, Why why) noexcept
try {
    return std::make_exception_ptr(system_error{code, why()});
} catch (...) {
    return std::current_exception();
}

// ---- advice: by an error's code or number, never by the kernel's text ----

// A literal; empty where the error says it all.
[[nodiscard]] char const* advice_on(error_code code) noexcept;
// The same of a read.
[[nodiscard]] char const* advice_on_read(error_code code) noexcept;

// `operation` as in diagnostics::operation; `attribute` of the request that the kernel found at fault, if it said so.
// Empty: nothing certain can be said.
[[nodiscard]] std::string advice_on(std::string_view operation, int error, std::string_view attribute = {});

}  // namespace gpurx::detail
