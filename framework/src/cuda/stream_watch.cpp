// SPDX-License-Identifier: Apache-2.0
//
// The thread that sees streams pass. It asks the driver for the oldest point of each stream, often at first and
// seldom when a stream stands still (poll_schedule.hpp), and sleeps when nobody waits: a host function in the stream
// would stall it, and would never be called once the GPU is in error; to block on one event would let a slow stream
// hold up the others.
#include <sys/prctl.h>

#include <algorithm>
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
        auto const is_urgent = points->what != waiting_for::pool_pages;
        is_new_urgent_ = is_new_urgent_ || is_urgent;
        wake(lock, is_urgent ? sleep_length::pause : sleep_length::longer);
        return true;
    }

    // Looks at all of them now, and as often as if they had just come in.
    void hurry() noexcept
    {
        std::unique_lock lock{mutex_};
        hurried_ = true;
        wake(lock, sleep_length::pause);
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
    enum class sleep_length : std::uint8_t { none, pause, longer };

    // Wakes the thread from a sleep of at least this length.
    void wake(std::unique_lock<std::mutex>& lock, sleep_length from) noexcept
    {
        auto const sleeps = asleep_ >= from;
        if (sleeps)
            asleep_ = sleep_length::none;
        lock.unlock();
        if (sleeps)
            wake_.notify_one();
    }

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
        if (point != nullptr)
            was_last_urgent_ = std::exchange(is_new_urgent_, false);
        auto const hurried = std::exchange(hurried_, false);
        auto const goes_on = !stopping_;
        lock.unlock();
        now_ = poll_clock::now();
        while (point != nullptr)
            append(std::exchange(point, point->behind));
        for (auto* first = streams_; hurried && first != nullptr; first = first->other)
            hasten(*first);
        return goes_on;
    }

    // Those who add something wake it from a long sleep only: a short one is soon over.
    void sleep(std::unique_lock<std::mutex>& lock) noexcept
    {
        auto const asleep = [&](sleep_length length, auto wait) {
            asleep_ = length;
            wait([&] { return stopping_ || asleep_ == sleep_length::none; });
            asleep_ = sleep_length::none;
        };
        auto const nothing_new = oldest_ == nullptr;
        if (stopping_ || (streams_ == nullptr && !nothing_new))
            return;
        if (streams_ == nullptr && idle_ > linger)
            return asleep(sleep_length::longer, [&](auto over) { wake_.wait(lock, over); });
        auto const is_urgent = nothing_new ? was_last_urgent_ : is_new_urgent_;
        auto until = now_ + (is_urgent ? limits_of_pages : limits_of_pool).shortest;
        if (streams_ != nullptr)
            until = nothing_new ? next_poll_ : std::min(until, std::max(next_poll_, now_ + shortest_pause));
        if (hurried_)
            until = std::min(until, now_ + shortest_pause);
        if (until <= now_ + 2 * shortest_pause)
            wake_.wait_until(lock, until, [&] { return stopping_; });
        else
            asleep(until > now_ + limits_of_pool.shortest ? sleep_length::longer : sleep_length::pause,
                   [&](auto over) { wake_.wait_until(lock, until, over); });
    }

    // Somebody lacks the pages of this point, or will.
    void hasten(stream_point& first) noexcept
    {
        first.what = std::max(first.what, waiting_for::pages);
        if (first.last_urgent == nullptr)
            first.last_urgent = &first;
        wait_from_now(first);
    }

    // Asked for at once.
    void wait_from_now(stream_point& first) noexcept
    {
        first.since = now_;
        first.poll_at = now_;
    }

    void append(stream_point* point) noexcept
    {
        auto const is_urgent = point->what != waiting_for::pool_pages;
        point->behind = nullptr;
        point->last_urgent = is_urgent ? point : nullptr;
        // One that stands for another was not recorded last.
        for (auto* first = streams_; first != nullptr && point->stands_for == nullptr; first = first->other) {
            if (first->stream == point->stream && first->context == point->context && first->stands_for == nullptr) {
                first->last->behind = point;
                first->last = point;
                if (is_urgent && std::exchange(first->last_urgent, point) == nullptr)
                    wait_from_now(*first);
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

    // Those of the first point. An urgent one behind points for pool pages must not wait for their pauses.
    static poll_limits const& limits_of(stream_point const& first) noexcept
    {
        if (first.last_urgent == nullptr)
            return limits_of_pool;
        return first.what == waiting_for::stream ? limits_of_waits : limits_of_pages;
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
                first->poll_at = next_poll(now_, first->since, limits_of(*first));
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
            second->last_urgent = first->last_urgent == first ? nullptr : first->last_urgent;
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
    bool is_new_urgent_ = false;  // one of these
    sleep_length asleep_ = sleep_length::none;
    bool hurried_ = false;
    bool stopping_ = false;

    std::jthread thread_;
    stream_point* streams_ = nullptr;  // the thread's own, as is:
    int idle_ = 0;
    bool was_last_urgent_ = true;  // one of those that have come in last
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
    last->what = what;
    while (last->next != nullptr) {
        last = last->next;
        last->what = what;
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
