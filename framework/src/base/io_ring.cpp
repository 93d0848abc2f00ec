// SPDX-License-Identifier: Apache-2.0
#include "io_ring.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "failure.hpp"
#include "syscalls.hpp"

namespace gpurx::detail {

io_ring::made io_ring::make(unsigned submissions, unsigned completions, bool disabled)
{
    io_uring_params params{};
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQE32 | IORING_SETUP_CQSIZE |
                   (disabled ? IORING_SETUP_R_DISABLED : 0u);
    params.cq_entries = completions;
    unshared_fd fd{[&] {
        auto const ring = sys::io_uring_setup(submissions, &params);
        if (auto const error = errno; ring < 0)
            fail(error, "make ring", "io_uring", advice_on("make ring", error));
        return ring;
    }};
    return {params, std::move(fd)};
}

io_ring::io_ring(unsigned submissions, unsigned completions, bool disabled)
    : io_ring{make(submissions, completions, disabled)}
{}

io_ring::io_ring(unshared_fd ring, io_uring_params const& params)
    : params_{params},
      fd_{std::move(ring)},
      rings_{fd_.get(), IORING_OFF_SQ_RING,
             std::max<std::size_t>(params_.cq_off.cqes + std::size_t{params_.cq_entries} * sizeof(completion),
                                   params_.sq_off.array + params_.sq_entries * sizeof(std::uint32_t)),
             "io_uring"},
      entries_{fd_.get(), IORING_OFF_SQES, params_.sq_entries * sizeof(io_uring_sqe), "io_uring entries"},
      submissions_{entries_.as<io_uring_sqe>(0)},
      sq_tail_{rings_.as<std::uint32_t>(params_.sq_off.tail)},
      sq_mask_{params_.sq_entries - 1},
      cq_head_{rings_.as<std::uint32_t>(params_.cq_off.head)},
      cq_tail_{rings_.as<std::uint32_t>(params_.cq_off.tail)},
      cq_lost_{rings_.as<std::uint32_t>(params_.cq_off.overflow)},
      cq_mask_{params_.cq_entries - 1},
      completions_{rings_.as<completion>(params_.cq_off.cqes)}
{
    auto* const places = rings_.as<std::uint32_t>(params_.sq_off.array);
    for (std::uint32_t i = 0; i < params_.sq_entries; ++i)
        places[i] = i;
}

int io_ring::enter(unsigned least) noexcept
{
    std::atomic_ref{*sq_tail_}.store(next_, std::memory_order_release);
    auto const taken = sys::io_uring_enter(fd_.get(), next_ - submitted_, least, IORING_ENTER_GETEVENTS);
    if (taken < 0)
        return errno;
    submitted_ += static_cast<std::uint32_t>(taken);
    return 0;
}

int io_ring::register_with(unsigned opcode, void* argument, unsigned count) noexcept
{
    return sys::io_uring_register(fd_.get(), opcode, argument, count) < 0 ? errno : 0;
}

}  // namespace gpurx::detail
