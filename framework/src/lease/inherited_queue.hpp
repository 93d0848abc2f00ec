// SPDX-License-Identifier: Apache-2.0
//
// A queue of io_uring that gpurx-run hands on to its program: rings, and a connection by which the program's session
// asks for the queue. gpurx-run then sets up the NIC, and imports the queue into the rings. An environment variable
// names the descriptors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fork.hpp"
#include "base/syscalls.hpp"
#include "base/zcrx_queue.hpp"

namespace gpurx::detail {

inline constexpr char inherited_queue_variable[] = "GPURX_RUN";

// The value of the variable.
struct inherited_queue {
    std::string interface;
    int channel = -1;             // to gpurx-run
    int state = -1;               // file with a zcrx_queue::handover, once there is one
    std::uint64_t inode = 0;      // of that file: the numbers of closed descriptors get another meaning
    std::vector<int> rings = {};  // of zcrx_queue::make_ring(), one for each thread and one more

    friend bool operator==(inherited_queue const&, inherited_queue const&) = default;
};

[[nodiscard]] std::string to_variable(inherited_queue const& queue);
[[nodiscard]] std::optional<inherited_queue> parse_variable(std::string_view text);

// What this process was started with, if it is for that interface.
[[nodiscard]] std::optional<inherited_queue> find_inherited_queue(std::string const& interface);

// The descriptors, owned.
struct claimed_queue {
    unique_fd channel;
    unshared_fd state;
    std::vector<unshared_fd> rings;

    // Once gpurx-run has answered. Throws system_error.
    [[nodiscard]] std::shared_ptr<zcrx_queue> adopt();
};

// A process can claim what it inherited once. Throws system_error: EBUSY, or EBADF if the descriptors are closed.
[[nodiscard]] claimed_queue claim(inherited_queue const& queue);

}  // namespace gpurx::detail
