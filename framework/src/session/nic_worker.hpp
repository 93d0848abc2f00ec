// SPDX-License-Identifier: Apache-2.0
//
// The thread that does a session's work on its NIC. Netlink, ethtool and the journal take milliseconds, and seconds
// where another session is just being opened on the interface: no thread of the program waits for that, least of all
// one that runs an io_context. It sleeps while there is nothing to do.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fork.hpp"

namespace gpurx::detail {

class nic_worker {
  public:
    // A piece of work. An object of its own, so that it can be made in advance where it must not fail later
    // for want of memory.
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
        bool* done_ = nullptr;  // of one that somebody waits for, and destroys
    };

    // The caller calls finish() in the end: the thread lives until then. Throws system_error if there is no thread.
    [[nodiscard]] static std::shared_ptr<nic_worker> start();

    // ---- from any thread, and in this order ----

    // After what was posted before. Never waits.
    void post(std::unique_ptr<job> work) noexcept;
    // The same, and returns when it is done. On the worker's own thread: at once.
    template <class Work>
    void run(Work work)
    {
        awaited<Work> inside{work};
        wait_for(inside);
    }
    // The last job, after which the thread ends. Waits for it if the process is ending.
    void finish(std::unique_ptr<job> last) noexcept;
    // Returns when the last job is done; at once if there was no finish(), or on the worker's own thread.
    void wait_if_finishing() noexcept;

    // Waits for all workers that finish. The end of the process does so, too: a program that has returned from main
    // finds its NIC as it was.
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
    std::mutex mutex_;  // guards what follows
    std::condition_variable work_;
    std::condition_variable done_;
    job* first_ = nullptr;
    job** end_ = &first_;
    job* last_ = nullptr;
    bool ended_ = false;
};

}  // namespace gpurx::detail
