// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>

namespace gpurx::perf {

// Not use_awaitable: operations would be coroutines of their own, in which clang-tidy 14 gets lost.
inline constexpr auto direct = boost::asio::as_tuple(boost::asio::deferred);

}  // namespace gpurx::perf
