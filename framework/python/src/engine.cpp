// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

namespace gpurx::python {

namespace {

// Never destroyed: tensors may return at any time.
class threads {
  public:
    static threads& instance()
    {
        static auto* const all = new threads;
        return *all;
    }

    [[nodiscard]] bool is_here() const noexcept { return process_ == ::getpid(); }

    [[nodiscard]] asio::any_io_executor start()
    {
        std::scoped_lock const lock{mutex_};
        if (stopped_)
            throw system_error{
                make_error_code(boost::system::errc::operation_canceled),
                {.operation = "start", .object = "an operation", .kernel_message = {}, .advice = "Python is ending"}};
        if (running_.empty())
            run();
        return io_.get_executor();
    }

    void stop() noexcept
    {
        std::vector<std::thread> last;
        {
            std::scoped_lock const lock{mutex_};
            stopped_ = true;
            last = std::move(running_);
            running_.clear();
        }
        io_.stop();
        for (auto& thread : last)
            thread.join();
        clear_up();
    }

    void run_later(std::function<void()> last)
    {
        std::unique_lock lock{mutex_};
        waste_.push_back(std::move(last));
        auto const runs = !running_.empty();
        lock.unlock();
        if (runs)
            asio::post(io_, [this] { clear_up(); });
        else
            clear_up();
    }

  private:
    void clear_up()
    {
        for (;;) {
            std::unique_lock lock{mutex_};
            if (waste_.empty())
                return;
            auto const last = std::move(waste_.front());
            waste_.pop_front();
            lock.unlock();
            last();
        }
    }

    // Precondition: the mutex is held.
    void run()
    {
        // Blocks all signals: Python's main thread handles them.
        sigset_t all;
        sigset_t before;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        auto const count = std::clamp(std::thread::hardware_concurrency(), 1U, 4U);
        for (unsigned i = 0; i < count; ++i)
            running_.emplace_back([this] { io_.run(); });
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    pid_t const process_ = ::getpid();
    asio::io_context io_;
    asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
    std::mutex mutex_;  // guards the members below
    bool stopped_ = false;
    std::vector<std::thread> running_;
    std::deque<std::function<void()>> waste_;
};

}  // namespace

bool in_own_process() noexcept
{
    return threads::instance().is_here();
}

void check_process()
{
    if (!in_own_process())
        throw system_error{
            make_error_code(boost::system::errc::operation_not_permitted),
            {.operation = "use",
             .object = "gpurx",
             .kernel_message = {},
             .advice =
                 "this process was forked from one that uses gpurx, and CUDA, the library's threads and the NIC's "
                 "queues do not survive a fork: receive in the training process (DataLoader(num_workers=0)), or start "
                 "processes with multiprocessing's 'spawn'"}};
}

asio::any_io_executor engine()
{
    check_process();
    return threads::instance().start();
}

void stop_engine() noexcept
{
    if (in_own_process())
        threads::instance().stop();
}

void run_later(std::function<void()> last) noexcept
{
    if (in_own_process())
        threads::instance().run_later(std::move(last));
}

operation::~operation()
{
    if (event_ >= 0)
        ::close(event_);
}

bool operation::wait_for(std::chrono::milliseconds time) const
{
    std::unique_lock lock{mutex_};
    return over_changed_.wait_for(lock, time, [this] { return over_; });
}

void operation::cancel()
{
    asio::post(*where_, [self = shared_from_this()] { self->signal_.emit(asio::cancellation_type::terminal); });
}

int operation::descriptor()
{
    std::scoped_lock const lock{mutex_};
    if (event_ < 0)
        event_ = ::eventfd(over_ ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_ < 0)
        throw system_error{error_code{errno, boost::system::system_category()},
                           {.operation = "eventfd", .object = "an operation", .kernel_message = {}, .advice = {}}};
    return event_;
}

void operation::set_over(std::exception_ptr failure)
{
    std::scoped_lock const lock{mutex_};
    failure_ = std::move(failure);
    over_ = true;
    over_changed_.notify_all();
    std::uint64_t const one = 1;
    if (event_ >= 0)
        static_cast<void>(!::write(event_, &one, sizeof one));
}

void operation::check() const
{
    std::scoped_lock const lock{mutex_};
    if (failure_)
        std::rethrow_exception(failure_);
}

}  // namespace gpurx::python
