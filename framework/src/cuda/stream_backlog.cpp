// SPDX-License-Identifier: Apache-2.0
#include "stream_backlog.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gpu.hpp"
#include "stream_point.hpp"

namespace gpurx::detail {

namespace cuda {

namespace {

class backlog_state final : public stream_backlog {
  public:
    backlog_state() = default;

    bool is_full() noexcept override
    {
        std::scoped_lock const lock{mutex_};
        return looks_full();
    }

    bool notify(int event) noexcept override
    {
        stream_point* first = nullptr;
        {
            std::scoped_lock const lock{mutex_};
            if (!looks_full())
                return false;
            add_waiter(event);
            if (std::exchange(awaited_, true))
                return true;
            first = stand_in_for(*first_);
        }
        // Without the mutex: this may call on_passed() at once.
        if (first == nullptr)
            on_passed(this, {});
        else
            when_passed(first, on_passed, this, waiting_for::stream);
        return true;
    }

    void forget(int event) noexcept override
    {
        std::scoped_lock const lock{mutex_};
        std::erase(waiters_, event);
    }

    void add(std::size_t commands, stream_point& behind) noexcept
    {
        std::scoped_lock const lock{mutex_};
        open_ += commands;
        // Of a lost point nobody knows when it passes before the stream has nothing to do.
        if (open_ < commands_per_window || behind.lost)
            return;
        open_ = 0;
        auto*& end = first_ == nullptr ? first_ : second_;
        if (end != nullptr)
            discard(end);  // threads that all had found room
        end = hold(behind);
    }

  private:
    // With the mutex, as the next.
    [[nodiscard]] bool looks_full() noexcept
    {
        while (second_ != nullptr && passed(*first_))
            discard(std::exchange(first_, std::exchange(second_, nullptr)));
        return second_ != nullptr;
    }

    // Without memory for it, it is told at once, and will ask again.
    void add_waiter(int event) noexcept
    {
        try {
            if (std::ranges::find(waiters_, event) == waiters_.end())
                waiters_.push_back(event);
        } catch (std::bad_alloc const&) {
            tell(event);
        }
    }

    static void tell(int event) noexcept
    {
        std::uint64_t const one = 1;
        [[maybe_unused]] auto const written = ::write(event, &one, sizeof one);
    }

    static void on_passed(void* argument, error_code) noexcept
    {
        auto& self = *static_cast<backlog_state*>(argument);
        std::scoped_lock const lock{self.mutex_};
        self.awaited_ = false;
        for (auto const event : self.waiters_)
            tell(event);
        self.waiters_.clear();
    }

    std::mutex mutex_;               // guards what follows
    std::size_t open_ = 0;           // commands behind the last point that is kept
    stream_point* first_ = nullptr;  // behind a window of commands, and behind the next; null: not closed yet
    stream_point* second_ = nullptr;
    bool awaited_ = false;      // on_passed() will be called
    std::vector<int> waiters_;  // eventfds
};

struct backlogs {
    std::mutex mutex;
    std::map<std::pair<CUcontext, CUstream>, std::unique_ptr<backlog_state>> of_streams;

    static backlogs& instance()
    {
        // Never destroyed: loans come back late.
        static auto* const all = new backlogs;
        return *all;
    }
};

}  // namespace

void add_to(stream_backlog& backlog, std::size_t commands, stream_point& behind) noexcept
{
    static_cast<backlog_state&>(backlog).add(commands, behind);
}

}  // namespace cuda

// Kept though the stream may be gone: CUDA uses handles again, and what an earlier stream of the handle has left is
// found to have passed.
stream_backlog* backlog_of(gpu_stream const& on) noexcept
{
    using namespace cuda;
    error_code code;
    return reporting(code, [&]() -> stream_backlog* {
        auto& all = backlogs::instance();
        std::scoped_lock const lock{all.mutex};
        auto& known = all.of_streams[{on.context, on.stream.get()}];
        if (known == nullptr)
            known = std::make_unique<backlog_state>();
        return known.get();
    });
}

}  // namespace gpurx::detail
