// SPDX-License-Identifier: Apache-2.0
#include "io_threads.hpp"

#include <boost/asio/append.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstddef>
#include <utility>

namespace gpurx::ingest::detail {

namespace {

// Enough for a disk to have work; more wait for each other in the kernel.
constexpr std::size_t thread_count = 8;
constexpr auto with_job_code = asio::as_tuple(asio::use_awaitable);

// The program's signals are for its own threads.
std::unique_ptr<asio::thread_pool> threads_without_signals()
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    auto threads = std::make_unique<asio::thread_pool>(thread_count);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return threads;
}

}  // namespace

asio::execution_context::id io_threads::id;

io_threads::io_threads(asio::execution_context& of) : service{of}, threads_{threads_without_signals()} {}

void io_threads::start(asio::any_io_executor const& executor, job work, handler done)
{
    // The context has work to wait for until the handler is on its way.
    auto back = asio::prefer(executor, asio::execution::outstanding_work_t::tracked);
    asio::post(*threads_, [back = std::move(back), work = std::move(work), done = std::move(done)]() mutable {
        auto const code = work();
        asio::post(back, asio::append(std::move(done), code));
    });
}

void io_threads::shutdown()
{
    // A context shuts down in its own destructor and in that of its base.
    if (threads_ == nullptr)
        return;
    threads_->stop();
    threads_->join();
    threads_.reset();
}

asio::awaitable<error_code> async_run(asio::any_io_executor executor, io_threads::job work)
{
    auto& threads = asio::use_service<io_threads>(asio::query(executor, asio::execution::context));
    // By reference: GCC 12 destroys what a lambda in such a call has captured twice.
    auto const [code] = co_await asio::async_initiate<decltype(with_job_code), void(error_code)>(
        [&threads, &executor](auto done, io_threads::job what) {
            threads.start(executor, std::move(what), io_threads::handler{std::move(done)});
        },
        with_job_code, std::move(work));
    co_return code;
}

}  // namespace gpurx::ingest::detail
