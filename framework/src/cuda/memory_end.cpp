// SPDX-License-Identifier: Apache-2.0
#include "memory_end.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include <gpurx/error.hpp>

#include "base/thread.hpp"
#include "memory/memory_state.hpp"
#include "stream_point.hpp"

namespace gpurx::detail::cuda {

namespace {

class memory_undertaker {
  public:
    static memory_undertaker& instance()
    {
        // Never destroyed: memory may end in static destructors.
        static auto* const only = new memory_undertaker;
        return *only;
    }

    // False: nobody will end it.
    [[nodiscard]] bool take(memory_state* ending) noexcept
    {
        std::scoped_lock const lock{mutex_};
        if (stopping_)
            return false;
        try {
            if (!thread_.joinable())
                thread_ = start_thread("gpurx-memory", [this](std::stop_token const&) { run(); });
            waiting_.emplace_back(ending);
        } catch (system_error const&) {
            return false;
        } catch (std::bad_alloc const&) {
            return false;
        }
        changed_.notify_all();
        return true;
    }

    void stop() noexcept
    {
        constexpr std::chrono::seconds patience{1};
        std::unique_lock lock{mutex_};
        stopping_ = true;
        auto left = std::move(waiting_);
        changed_.notify_all();
        lock.unlock();
        left.clear();
        lock.lock();
        auto const is_done = changed_.wait_for(lock, patience, [&] { return !at_work_; });
        lock.unlock();
        if (!thread_.joinable())
            return;
        if (is_done)
            thread_.join();
        else
            thread_.detach();  // it ends with the process
    }

  private:
    void run() noexcept
    {
        std::unique_lock lock{mutex_};
        for (;;) {
            changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
            if (stopping_)
                return;
            auto ending = std::move(waiting_.front());
            waiting_.pop_front();
            at_work_ = true;
            lock.unlock();
            ending.reset();
            lock.lock();
            at_work_ = false;
            changed_.notify_all();
        }
    }

    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    std::deque<std::unique_ptr<memory_state>> waiting_;
    bool at_work_ = false;
    bool stopping_ = false;
    std::jthread thread_;
};

}  // namespace

void end_memory(memory_state* ending) noexcept
{
    if (!is_watching_streams() || !memory_undertaker::instance().take(ending))
        delete ending;
}

void finish_memory_ends() noexcept
{
    memory_undertaker::instance().stop();
}

}  // namespace gpurx::detail::cuda
