// SPDX-License-Identifier: Apache-2.0
//
// An io_uring that is used like a system call: one thread submits, and reaps what comes at once. Its mappings and its
// descriptor stay out of children, which would keep the ring, and with it a NIC's queue, alive.
#pragma once

#include <linux/io_uring.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "fork.hpp"
#include "io_uring_uapi.hpp"

namespace gpurx::detail {

class io_ring {
  public:
    using completion = uapi::zcrx::cqe;

    // A ring whose submitter is the thread that makes it; or, `disabled`, one that nothing can be submitted to, and
    // that any thread may register with. Throws system_error.
    io_ring(unsigned submissions, unsigned completions, bool disabled);
    // Takes over a ring that another process made, and that has these parameters. Throws system_error.
    io_ring(unshared_fd ring, io_uring_params const& params);

    // The next entry, cleared, at most `submissions` before the next enter().
    [[nodiscard]] io_uring_sqe& next() noexcept
    {
        auto& entry = submissions_[next_++ & sq_mask_];
        std::memset(&entry, 0, sizeof entry);
        return entry;
    }
    // Submits what next() gave, and waits for `least` completions. 0, or errno: EINTR may have submitted.
    [[nodiscard]] int enter(unsigned least) noexcept;
    // Forgets entries that the kernel did not take.
    void drop() noexcept { next_ = submitted_; }
    // Completions that never come: they found the ring full, and the kernel had no memory to keep them.
    [[nodiscard]] std::uint32_t lost() const noexcept
    {
        return std::atomic_ref{*cq_lost_}.load(std::memory_order_relaxed);
    }
    // Completions that are there.
    [[nodiscard]] std::uint32_t ready() const noexcept
    {
        return std::atomic_ref{*cq_tail_}.load(std::memory_order_acquire) - *cq_head_;
    }
    // Calls visit(completion const&) for each of the first `count` of them.
    template <class Visit>
    void reap(std::uint32_t count, Visit&& visit) noexcept
    {
        auto const begin = *cq_head_;
        // At most two runs, as the ring may wrap within them: a run costs less than a place computed for each.
        for (auto at = begin, end = begin + count; at != end;) {
            auto const place = at & cq_mask_;
            auto const run = std::min(end - at, cq_mask_ + 1 - place);
            for (auto const *one = completions_ + place, *const last = one + run; one != last; ++one)
                visit(*one);
            at += run;
        }
        std::atomic_ref{*cq_head_}.store(begin + count, std::memory_order_release);
    }
    // Makes the calling thread the submitter of a disabled ring, for good. 0, or errno.
    [[nodiscard]] int enable() noexcept { return register_with(IORING_REGISTER_ENABLE_RINGS, nullptr, 0); }
    // As io_uring_register(2) on this ring; 0, or errno. Only the ring's thread, or, disabled, any.
    [[nodiscard]] int register_with(unsigned opcode, void* argument, unsigned count) noexcept;
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    [[nodiscard]] io_uring_params const& params() const noexcept { return params_; }

  private:
    struct made {
        io_uring_params params;
        unshared_fd fd;
    };
    [[nodiscard]] static made make(unsigned submissions, unsigned completions, bool disabled);
    explicit io_ring(made ring) : io_ring{std::move(ring.fd), ring.params} {}

    io_uring_params params_;
    unshared_fd fd_;
    unshared_mapping rings_;
    unshared_mapping entries_;
    io_uring_sqe* submissions_;
    std::uint32_t* sq_tail_;
    std::uint32_t sq_mask_;
    std::uint32_t next_ = 0;       // place of the next entry
    std::uint32_t submitted_ = 0;  // entries that the kernel took
    std::uint32_t* cq_head_;
    std::uint32_t* cq_tail_;
    std::uint32_t* cq_lost_;
    std::uint32_t cq_mask_;
    completion const* completions_;
};

}  // namespace gpurx::detail
