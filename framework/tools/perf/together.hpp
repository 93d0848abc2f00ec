// SPDX-License-Identifier: Apache-2.0
//
// Coroutines of which one that fails ends all.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <utility>
#include <vector>

// `operations`: deferred co_spawns. Throws what the first that failed threw.
template <class Operation>
boost::asio::awaitable<void> run_together(std::vector<Operation> operations)
{
    namespace asio = boost::asio;
    auto const [order, failures] = co_await asio::experimental::make_parallel_group(std::move(operations))
                                       .async_wait(asio::experimental::wait_for_one_error(), asio::use_awaitable);
    for (auto const which : order) {
        if (failures[which])
            std::rethrow_exception(failures[which]);
    }
}
