// SPDX-License-Identifier: Apache-2.0
//
// Threads for calls that block: a few for all files of an execution context, joined when it ends.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>

#include <gpurx/error.hpp>

namespace gpurx::ingest::detail {

class io_threads final : public asio::execution_context::service {
  public:
    static asio::execution_context::id id;

    // Throws nothing.
    using job = std::function<error_code()>;
    using handler = asio::any_completion_handler<void(error_code)>;

    explicit io_threads(asio::execution_context& of);

    // The handler runs on its executor, by default `executor`.
    void start(asio::any_io_executor const& executor, job work, handler done);

  private:
    // Jobs under way are waited for, as they write to memory of coroutines that are destroyed after this.
    void shutdown() override;

    std::unique_ptr<asio::thread_pool> threads_;
};

// Runs it on a thread of `executor`'s context. Cancellation: none, as what it does cannot be stopped; a coroutine that
// is cancelled meanwhile ends with its next operation.
[[nodiscard]] asio::awaitable<error_code> async_run(asio::any_io_executor executor, io_threads::job work);

}  // namespace gpurx::ingest::detail
