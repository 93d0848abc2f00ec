// SPDX-License-Identifier: Apache-2.0
//
// The thread that sees streams pass. It asks the driver for the oldest point of each stream, often at first and
// seldom when a stream stands still (poll_schedule.hpp), and sleeps when nobody waits: a host function in the stream
// would stall it, and would never be called once the GPU is in error; to block on one event would let a slow stream
// hold up the others.
#include <sys/prctl.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <semaphore>
#include <thread>
#include <utility>

#include "base/thread.hpp"
#include "gpu.hpp"
#include "poll_schedule.hpp"
#include "stream_point.hpp"

namespace gpurx::detail {

namespace cuda {

namespace {

// Looks for nothing before it sleeps, about two milliseconds: to wake it takes longer than everything else that a
// release does, and one release is seldom the last.
constexpr int linger = 25;

thread_local bool is_the_watcher = false;

class stream_watch {
  public:
    // Throws system_error and std::bad_alloc.
    void start()
    {
        std::scoped_lock const lock{mutex_};
        start_once();
    }

    // False: nobody will look at them.
    [[nodiscard]] bool add(stream_point* points) noexcept
    {
        std::unique_lock lock{mutex_};
        if (stopping_ || !is_started())
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

    // Looks at all of them now, and as often as if they had just come in.
    void hurry() noexcept
    {
        std::unique_lock lock{mutex_};
        hurried_ = true;
        auto const sleeps = std::exchange(asleep_, false);
        lock.unlock();
        if (sleeps)
            wake_.notify_one();
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
    // With the mutex, as the next. Throws system_error and std::bad_alloc.
    void start_once()
    {
        if (!stopping_ && !thread_.joinable())
            thread_ = start_thread("gpurx-streams", [this](std::stop_token const&) { run(); });
    }

    // False: the system has no thread for it.
    [[nodiscard]] bool is_started() noexcept
    {
        error_code why;
        return reporting(why, [this] {
            start_once();
            return true;
        });
    }

    void run() noexcept
    {
        is_the_watcher = true;
        ::prctl(PR_SET_TIMERSLACK, 1);  // or each sleep takes 50 us longer than asked for
        while (take_in())
            poll();
        give_up();
    }

    // Sleeps until there is something to do, and sorts what has come in by stream. False: told to stop.
    [[nodiscard]] bool take_in() noexcept
    {
        std::unique_lock lock{mutex_};
        idle_ = streams_ == nullptr && oldest_ == nullptr ? idle_ + 1 : 0;
        sleep(lock);
        auto* point = std::exchange(oldest_, nullptr);
        newest_ = nullptr;
        auto const hurried = std::exchange(hurried_, false);
        auto const goes_on = !stopping_;
        lock.unlock();
        now_ = poll_clock::now();
        while (point != nullptr)
            append(std::exchange(point, point->behind));
        for (auto* first = streams_; hurried && first != nullptr; first = first->other)
            wait_from_now(*first);
        return goes_on;
    }

    // Those who add something wake it from a long sleep only: a short one is soon over.
    void sleep(std::unique_lock<std::mutex>& lock) noexcept
    {
        auto const for_long = [&](auto wait) {
            asleep_ = true;
            wait([&] { return stopping_ || !asleep_; });
            asleep_ = false;
        };
        auto const nothing_new = oldest_ == nullptr;
        if (stopping_ || (streams_ == nullptr && !nothing_new))
            return;
        auto const until = streams_ != nullptr && nothing_new ? next_poll_ : now_ + shortest_pause;
        if (streams_ == nullptr && idle_ > linger)
            for_long([&](auto over) { wake_.wait(lock, over); });
        else if (until > now_ + 2 * shortest_pause)
            for_long([&](auto over) { wake_.wait_until(lock, until, over); });
        else
            wake_.wait_until(lock, until, [&] { return stopping_; });
    }

    // Asked for at once.
    void wait_from_now(stream_point& first) noexcept
    {
        first.since = now_;
        first.poll_at = now_;
    }

    void append(stream_point* point) noexcept
    {
        point->behind = nullptr;
        // One that stands for another was not recorded last.
        for (auto* first = streams_; first != nullptr && point->stands_for == nullptr; first = first->other) {
            if (first->stream == point->stream && first->context == point->context && first->stands_for == nullptr) {
                first->last->behind = point;
                first->last = point;
                return;
            }
        }
        point->last = point;
        point->other = std::exchange(streams_, point);
        wait_from_now(*point);
    }

    static context_scope const& enter(stream_point const& point, std::optional<context_scope>& within) noexcept
    {
        if (!within || within->context() != point.context) {
            within.reset();
            within.emplace(require_driver(), point.context);
        }
        return *within;
    }

    // Whether the oldest point of a stream has passed. For a lost one a later one that is not is asked for, if there is
    // one: a stream that always has work never has nothing to do, and one that is asked must not be captured meanwhile.
    static bool first_has_passed(stream_point& first, context_scope const& within) noexcept
    {
        auto* asked = &first;
        while (asked != nullptr && asked->lost)
            asked = asked->behind;
        if (asked == nullptr)
            asked = &first;
        if (!passed(*asked, within))
            return false;
        first.end = asked->end.load();
        return true;
    }

    // Asks for the oldest point of each stream whose time has come. Whoever waits is told in the order of the stream.
    void poll() noexcept
    {
        stream_point* done = nullptr;
        auto** end = &done;
        std::optional<context_scope> within;  // most often all are of one context
        for (auto** link = &streams_; *link != nullptr;) {
            auto* const first = *link;
            if (first->poll_at > now_) {
                link = &first->other;
            } else if (!first_has_passed(*first, enter(*first, within))) {
                first->poll_at = next_poll(now_, first->since, first->awaited ? limits_of_waits : limits_of_pages);
                link = &first->other;
            } else {
                remove_first(link);
                first->behind = nullptr;
                *end = first;
                end = &first->behind;
            }
        }
        while (done != nullptr)
            finish(std::exchange(done, done->behind));
        next_poll_ = poll_clock::time_point::max();
        for (auto const* first = streams_; first != nullptr; first = first->other)
            next_poll_ = std::min(next_poll_, first->poll_at);
    }

    void remove_first(stream_point** link) noexcept
    {
        auto* const first = *link;
        if (auto* const second = first->behind) {
            second->last = first->last;
            second->other = first->other;
            *link = second;
            wait_from_now(*second);
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
        auto const end = point->end.load();
        settle(point);
        if (next == nullptr)
            return then(argument, error_of(end));
        if (end != CUDA_SUCCESS)
            next->end = end;
        append(next);
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
    bool asleep_ = false;  // for long
    bool hurried_ = false;
    bool stopping_ = false;

    std::jthread thread_;
    stream_point* streams_ = nullptr;  // the thread's own, as is:
    int idle_ = 0;
    poll_clock::time_point now_{};
    poll_clock::time_point next_poll_{};
};

}  // namespace

void watch_streams()
{
    immortal<stream_watch>().start();
}

bool is_watching_streams() noexcept
{
    return is_the_watcher;
}

void stop_watching_streams() noexcept
{
    immortal<stream_watch>().stop();
}

void wait_for(stream_point* point) noexcept
{
    if (point == nullptr)
        return;
    std::binary_semaphore passed{0};
    when_passed(
        point, [](void* waits, error_code) noexcept { static_cast<std::binary_semaphore*>(waits)->release(); }, &passed,
        waiting_for::stream);
    passed.acquire();
}

}  // namespace cuda

void look_at_streams() noexcept
{
    cuda::immortal<cuda::stream_watch>().hurry();
}

void when_passed(stream_point* point, void (*then)(void*, error_code) noexcept, void* argument,
                 waiting_for what) noexcept
{
    using namespace cuda;
    auto* last = point;
    last->awaited = what == waiting_for::stream;
    while (last->next != nullptr) {
        last = last->next;
        last->awaited = what == waiting_for::stream;
    }
    last->then = then;
    last->argument = argument;
    if (immortal<stream_watch>().add(point))
        return;
    auto end = CUDA_SUCCESS;
    while (point != nullptr) {
        while (!passed(*point))
            std::this_thread::sleep_for(shortest_pause);
        if (point->end != CUDA_SUCCESS)
            end = point->end;
        settle(std::exchange(point, point->next));
    }
    then(argument, error_of(end));
}

}  // namespace gpurx::detail
