// SPDX-License-Identifier: Apache-2.0
//
// Rings for a program without rights, and the service of its one session: the queue, imported into the rings, and the
// rules. The session speaks as it does to gpurxd.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/io_ring.hpp"
#include "base/syscalls.hpp"

namespace gpurx::launcher {

// What the program inherits, and this process' side of it.
struct handed_on {
    std::vector<detail::io_ring> rings;  // without a queue yet
    detail::unique_fd state;             // file for a zcrx_queue::handover
    detail::unique_fd channel;
    // Copies that survive exec(), to be closed here once the program runs.
    std::vector<detail::unique_fd> inherited;
    std::string variable;
};
// Throws system_error.
[[nodiscard]] handed_on prepare(std::string const& interface, unsigned threads);

// Until the session of the program, or the program, has ended; everything is undone then. Throws system_error.
void serve(handed_on& of, std::string const& interface, std::string const& state_directory, uid_t user);

}  // namespace gpurx::launcher
