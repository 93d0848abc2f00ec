// SPDX-License-Identifier: Apache-2.0
//
// Threads for work that blocks: files, programs and functions that supply credentials.
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

    // Must not throw.
    using job = std::function<error_code()>;
    using handler = asio::any_completion_handler<void(error_code)>;

    explicit io_threads(asio::execution_context& of);

    // The handler runs on its executor, by default `executor`.
    void start(asio::any_io_executor const& executor, job work, handler done);

  private:
    // Waits for running jobs, because they write to memory of coroutines that are destroyed after this.
    void shutdown() override;

    std::unique_ptr<asio::thread_pool> threads_;
};

// Runs the job on a thread of `executor`'s context. Cancellation: none, because the job cannot be stopped. A coroutine
// that is cancelled meanwhile ends with its next operation.
[[nodiscard]] asio::awaitable<error_code> async_run(asio::any_io_executor executor, io_threads::job work);

}  // namespace gpurx::ingest::detail
