// SPDX-License-Identifier: Apache-2.0
//
// Shorthands for coroutines.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <utility>
#include <vector>

namespace gpurx::perf {

// Not use_awaitable: operations would be coroutines of their own, in which clang-tidy 14 gets lost.
inline constexpr auto deferred_tuple = boost::asio::as_tuple(boost::asio::deferred);

// Awaits all `operations`, which are deferred co_spawns. The first that fails ends them, and is thrown.
template <class Operation>
boost::asio::awaitable<void> await_all(std::vector<Operation> operations)
{
    namespace asio = boost::asio;
    auto const [order, failures] = co_await asio::experimental::make_parallel_group(std::move(operations))
                                       .async_wait(asio::experimental::wait_for_one_error(), asio::use_awaitable);
    for (auto const which : order) {
        if (failures[which])
            std::rethrow_exception(failures[which]);
    }
}

}  // namespace gpurx::perf
