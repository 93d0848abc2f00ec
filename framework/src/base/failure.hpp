// SPDX-License-Identifier: Apache-2.0
//
// How code reports what went wrong: by throwing gpurx::system_error with the names filled in, or by an error code.
#pragma once

#include <boost/system/system_category.hpp>
#include <string>
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

}  // namespace gpurx::detail
