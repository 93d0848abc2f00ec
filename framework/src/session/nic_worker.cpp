// SPDX-License-Identifier: Apache-2.0
#include "nic_worker.hpp"

#include <atomic>
#include <cstdlib>
#include <utility>

#include "base/thread.hpp"

namespace gpurx::detail {

namespace {

// Workers of this process that have not done their last job. Never destroyed, for sessions may die in static
// destructors; and in a child that was forked a fresh one: it has none of the parent's threads.
struct finishing_workers {
    birthplace born;
    std::atomic<bool> process_ends{false};
    std::mutex mutex;  // guards what follows
    std::condition_variable fewer;
    unsigned count = 0;

    static finishing_workers& here()
    {
        static std::atomic<finishing_workers*> current{new finishing_workers};
        auto* found = current.load();
        if (!found->born.is_here()) {
            auto fresh = std::make_unique<finishing_workers>();
            if (current.compare_exchange_strong(found, fresh.get()))
                found = fresh.release();
        }
        return *found;
    }
};

}  // namespace

std::shared_ptr<nic_worker> nic_worker::start()
{
    static_cast<void>(finishing_workers::here());
    [[maybe_unused]] static int const once = std::atexit([] {
        finishing_workers::here().process_ends = true;
        wait_for_all();
    });
    std::shared_ptr<nic_worker> made{new nic_worker, delete_where_born{}};
    auto thread = start_thread("gpurx-nic", [made](std::stop_token const&) { made->serve(); });
    made->thread_ = thread.get_id();
    thread.detach();  // its last job may be what nobody waits for
    return made;
}

void nic_worker::post(std::unique_ptr<job> work) noexcept
{
    std::scoped_lock const lock{mutex_};
    append(*work.release());
}

void nic_worker::finish(std::unique_ptr<job> last) noexcept
{
    auto& all = finishing_workers::here();
    {
        std::scoped_lock const lock{all.mutex};
        ++all.count;
    }
    {
        std::scoped_lock const lock{mutex_};
        last_ = last.get();
        append(*last.release());
    }
    if (all.process_ends)
        wait_if_finishing();
}

void nic_worker::wait_if_finishing() noexcept
{
    if (thread_ == std::this_thread::get_id())
        return;
    std::unique_lock lock{mutex_};
    done_.wait(lock, [this] { return last_ == nullptr || ended_; });
}

void nic_worker::wait_for_all() noexcept
{
    auto& all = finishing_workers::here();
    std::unique_lock lock{all.mutex};
    all.fewer.wait(lock, [&all] { return all.count == 0; });
}

// Under the mutex.
void nic_worker::append(job& work) noexcept
{
    *end_ = &work;
    end_ = &work.next_;
    work_.notify_one();
}

void nic_worker::wait_for(job& work) noexcept
{
    if (thread_ == std::this_thread::get_id())
        return work.run();
    bool done = false;
    work.done_ = &done;
    std::unique_lock lock{mutex_};
    append(work);
    done_.wait(lock, [&done] { return done; });
}

void nic_worker::serve() noexcept
{
    std::unique_lock lock{mutex_};
    for (bool last = false; !last;) {
        work_.wait(lock, [this] { return first_ != nullptr; });
        auto* const next = first_;
        first_ = next->next_;
        if (first_ == nullptr)
            end_ = &first_;
        last = next == last_;
        auto* const done = next->done_;
        lock.unlock();
        next->run();
        if (done == nullptr)
            delete next;
        lock.lock();
        if (done != nullptr)
            *done = true;
        done_.notify_all();
    }
    ended_ = true;
    done_.notify_all();
    lock.unlock();
    auto& all = finishing_workers::here();
    std::scoped_lock const fewer{all.mutex};
    --all.count;
    all.fewer.notify_all();
}

}  // namespace gpurx::detail
