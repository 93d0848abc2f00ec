// SPDX-License-Identifier: Apache-2.0
#include "stream_watch.hpp"

#include <sys/prctl.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include <gpurx/error.hpp>

#include "thread.hpp"

namespace gpurx::detail::cuda {

namespace {

// Half of it is what a page waits for on average after its stream has passed, and one question to the driver costs
// about a microsecond.
constexpr std::chrono::microseconds period{40};
// Looks for nothing before it sleeps, about two milliseconds: to wake it takes longer than everything else that a
// release does, and one release is seldom the last.
constexpr int linger = 50;

class stream_watch {
  public:
    static stream_watch& instance()
    {
        // Never destroyed: points come in from static destructors too.
        static auto* const watch = new stream_watch;
        return *watch;
    }

    // False: nobody will look at them.
    [[nodiscard]] bool add(stream_point* points) noexcept
    {
        std::unique_lock lock{mutex_};
        if (stopping_ || !start())
            return false;
        points->behind = nullptr;
        (newest_ == nullptr ? oldest_ : newest_->behind) = points;
        newest_ = points;
        auto const sleeps = std::exchange(asleep_, false);
        lock.unlock();
        if (sleeps)
            wake_.notify_one();
        return true;
    }

    void stop() noexcept
    {
        {
            std::scoped_lock const lock{mutex_};
            stopping_ = true;
            wake_.notify_one();
        }
        if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id())
            thread_.join();
    }

  private:
    // With the mutex. False: the system has no thread for it.
    [[nodiscard]] bool start() noexcept
    {
        if (thread_.joinable())
            return true;
        try {
            thread_ = start_thread("gpurx-streams", [this](std::stop_token const&) { run(); });
        } catch (system_error const&) {
            return false;
        } catch (std::bad_alloc const&) {
            return false;
        }
        return true;
    }

    void run() noexcept
    {
        ::prctl(PR_SET_TIMERSLACK, 1);  // or each sleep takes 50 us longer than asked for
        while (take_in())
            if (!look())
                std::this_thread::sleep_for(period);
        give_up();
    }

    // Sorts what has come in by stream; sleeps while there is nothing. False: told to stop.
    [[nodiscard]] bool take_in() noexcept
    {
        std::unique_lock lock{mutex_};
        idle_ = streams_ == nullptr && oldest_ == nullptr ? idle_ + 1 : 0;
        while (!stopping_ && streams_ == nullptr && oldest_ == nullptr && idle_ > linger) {
            asleep_ = true;
            wake_.wait(lock);
        }
        asleep_ = false;
        auto* point = std::exchange(oldest_, nullptr);
        newest_ = nullptr;
        auto const goes_on = !stopping_;
        lock.unlock();
        while (point != nullptr)
            append(std::exchange(point, point->behind));
        return goes_on;
    }

    void append(stream_point* point) noexcept
    {
        point->behind = nullptr;
        for (auto* first = streams_; first != nullptr; first = first->other) {
            if (first->stream == point->stream && first->context == point->context) {
                first->last->behind = point;
                first->last = point;
                return;
            }
        }
        point->last = point;
        point->other = std::exchange(streams_, point);
    }

    // Asks for the oldest point of each stream. True if any has passed. Whoever waits is told in the
    // order of the stream.
    [[nodiscard]] bool look() noexcept
    {
        stream_point* done = nullptr;
        auto** end = &done;
        for (auto** link = &streams_; *link != nullptr;) {
            auto* const first = *link;
            if (!(passed(*first) || (first->lost && wait_for_context(*first)))) {
                link = &first->other;
                continue;
            }
            remove_first(link);
            first->behind = nullptr;
            *end = first;
            end = &first->behind;
        }
        auto const any = done != nullptr;
        while (done != nullptr)
            finish(std::exchange(done, done->behind));
        return any;
    }

    static void remove_first(stream_point** link) noexcept
    {
        auto* const first = *link;
        if (auto* const second = first->behind) {
            second->last = first->last;
            second->other = first->other;
            *link = second;
        } else {
            *link = first->other;
        }
    }

    // A point that has passed: the next of its list is waited for, or whoever waits is told.
    void finish(stream_point* point) noexcept
    {
        auto* const next = point->next;
        auto* const then = point->then;
        auto* const argument = point->argument;
        discard(point);
        if (next != nullptr)
            append(next);
        else
            then(argument);
    }

    // The process ends: nobody waits any more.
    void give_up() noexcept
    {
        while (streams_ != nullptr) {
            auto* const first = streams_;
            remove_first(&streams_);
            finish(first);
        }
    }

    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    stream_point* oldest_ = nullptr;  // of those that have come in
    stream_point* newest_ = nullptr;
    bool asleep_ = false;
    bool stopping_ = false;

    std::jthread thread_;
    stream_point* streams_ = nullptr;  // the thread's own, as is:
    int idle_ = 0;
};

}  // namespace

void watch(stream_point* points) noexcept
{
    if (stream_watch::instance().add(points))
        return;
    for (auto* point = points; point != nullptr;) {
        static_cast<void>(wait_for_context(*point));
        auto const now = *point;
        discard(std::exchange(point, point->next));
        if (now.next == nullptr)
            now.then(now.argument);
    }
}

void stop_watching_streams() noexcept
{
    stream_watch::instance().stop();
}

}  // namespace gpurx::detail::cuda
