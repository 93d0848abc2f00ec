// SPDX-License-Identifier: Apache-2.0
//
// Coroutines that run at the same time, and their results.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstddef>
#include <exception>
#include <utility>
#include <vector>

namespace gpurx::ingest::detail {

struct outcomes {
    std::vector<std::size_t> order;            // in which they ended
    std::vector<std::exception_ptr> failures;  // null: none
};

template <class Operation, class Condition>
boost::asio::awaitable<outcomes> await_all(std::vector<Operation> operations, Condition until)
{
    auto [order, failures] = co_await boost::asio::experimental::make_parallel_group(std::move(operations))
                                 .async_wait(std::move(until), boost::asio::use_awaitable);
    co_return outcomes{std::move(order), std::move(failures)};
}

// `operations`: deferred co_spawns, on any executors. `until`: a condition of parallel_group. The function starts the
// operations within a strand. A parallel group still reads its own state after it has started the last operation. If
// all operations finished by then on other threads, the waiting coroutine could otherwise resume and destroy that
// state.
template <class Operation, class Condition>
boost::asio::awaitable<outcomes> run_together(boost::asio::any_io_executor executor, std::vector<Operation> operations,
                                              Condition until)
{
    return boost::asio::co_spawn(boost::asio::make_strand(std::move(executor)),
                                 await_all(std::move(operations), std::move(until)), boost::asio::use_awaitable);
}

// Throws the first failure that is not the consequence of another.
inline void rethrow_first(outcomes const& of)
{
    for (auto const index : of.order) {
        if (of.failures[index] != nullptr)
            std::rethrow_exception(of.failures[index]);
    }
}

}  // namespace gpurx::ingest::detail
