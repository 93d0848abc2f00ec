// SPDX-License-Identifier: Apache-2.0
//
// Whether this process can have queues of io_uring zero-copy receive: the kernel's answers, and their judgement, which
// is pure. A filter of system calls may end the process that asks, so only those ask who may use such queues.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io_uring_uapi.hpp"

namespace gpurx::detail {

// The answers of the kernel. An errno of 0: it did what it was asked.
struct zcrx_support {
    std::optional<int> disabled;  // kernel.io_uring_disabled; nothing: there is no such setting
    int ring_error = 0;           // of making a ring
    int query_error = 0;          // of the question what zcrx has
    std::int32_t result = 0;      // of the answer: a negative errno where the kernel has no zcrx
    uapi::zcrx::query offers{};
    int right_error = 0;  // of a registration of nothing: EPERM where the right lacks, else another
};

enum class zcrx_lack : std::uint8_t {
    nothing,
    io_uring,      // the kernel has none
    permission,    // kernel.io_uring_disabled forbids it
    system_calls,  // a filter (seccomp) forbids or hides them, or a security module
    ring,          // no ring for another reason
    zcrx,          // the kernel has no zero-copy receive to ask about, or none at all
    dmabuf,        // as areas
    sharing,       // imports and exports, by which threads share a queue
    net_admin,     // CAP_NET_ADMIN in the initial user namespace
};

// Asks the kernel. Changes nothing, and needs no rights.
[[nodiscard]] zcrx_support observe_zcrx();
// The first obstacle.
[[nodiscard]] zcrx_lack find_lack(zcrx_support const& of) noexcept;
// A sentence without its full stop: the obstacle, and advice. Empty: there is none.
[[nodiscard]] std::string describe(zcrx_support const& of);

}  // namespace gpurx::detail
