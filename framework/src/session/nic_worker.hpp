// SPDX-License-Identifier: Apache-2.0
//
// The thread of a session's work on its NIC. Netlink, ethtool and the journal take milliseconds, or seconds while
// another session opens on the interface. No thread of the program waits for them, in particular no thread of an
// io_context. The thread sleeps while it has no jobs.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fork.hpp"

namespace gpurx::detail {

class nic_worker {
  public:
    // A piece of work. It is an object, so that it can be made in advance if it must not fail later because memory runs
    // out.
    class job {
      public:
        job() = default;
        job(job const&) = delete;
        job& operator=(job const&) = delete;
        virtual ~job() = default;
        virtual void run() noexcept = 0;

      private:
        friend class nic_worker;
        job* next_ = nullptr;
        bool* done_ = nullptr;  // of a job that a caller waits for, and destroys
    };

    // Starts the thread, which lives until finish(). The caller must call finish(). Throws system_error if the system
    // cannot start a thread.
    [[nodiscard]] static std::shared_ptr<nic_worker> start();

    // ---- from any thread, and in this order ----

    // Runs `work` after earlier jobs. Never waits.
    void post(std::unique_ptr<job> work) noexcept;
    // The same, and returns when `work` is done. On the worker's own thread it runs `work` at once.
    template <class Work>
    void run(Work work)
    {
        awaited<Work> inside{work};
        wait_for(inside);
    }
    // Posts the last job. The thread ends after it. Waits for it if the process is ending.
    void finish(std::unique_ptr<job> last) noexcept;
    // Returns when the last job is done; at once if there was no finish(), or on the worker's own thread.
    void wait_if_finishing() noexcept;

    // Waits for all workers that finish. The end of the process does so too, so that the NIC is restored when the
    // process has ended.
    static void wait_for_all() noexcept;

  private:
    template <class Work>
    class awaited final : public job {
      public:
        explicit awaited(Work& work) noexcept : work_{work} {}
        void run() noexcept override { work_(); }

      private:
        Work& work_;
    };

    nic_worker() = default;
    void append(job& work) noexcept;
    void wait_for(job& work) noexcept;
    void serve() noexcept;

    std::thread::id thread_;
    std::mutex mutex_;  // guards the members below
    std::condition_variable work_;
    std::condition_variable done_;
    job* first_ = nullptr;
    job** end_ = &first_;
    job* last_ = nullptr;
    bool ended_ = false;
};

}  // namespace gpurx::detail
