// SPDX-License-Identifier: Apache-2.0
//
// Time that cores have worked.
#pragma once

#include <chrono>

namespace gpurx::perf {

struct cpu_time {
    std::chrono::nanoseconds process;  // of this one: in user space and in its system calls
    std::chrono::nanoseconds machine;  // of all, and of interrupts; in steps of 10 ms. 0 if /proc does not say
};

[[nodiscard]] cpu_time cpu_time_now();

}  // namespace gpurx::perf
