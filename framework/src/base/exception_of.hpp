// SPDX-License-Identifier: Apache-2.0
//
// Makes the exception of a failed co_await.
#pragma once

#include <exception>

#include <gpurx/error.hpp>

namespace gpurx::detail {

// Returns a system_error with the diagnostics of `why`, or the exception that making it has thrown.
template <class Why>
[[nodiscard]] std::exception_ptr exception_of(error_code code, Why why) noexcept
try {
    return std::make_exception_ptr(system_error{code, why()});
} catch (...) {
    return std::current_exception();
}

}  // namespace gpurx::detail
