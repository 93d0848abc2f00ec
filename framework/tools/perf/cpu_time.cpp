// SPDX-License-Identifier: Apache-2.0
#include "cpu_time.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace gpurx::perf {

namespace {

std::chrono::nanoseconds duration_of(timeval const& time)
{
    return std::chrono::seconds{time.tv_sec} + std::chrono::microseconds{time.tv_usec};
}

// proc(5): user, nice, system, idle, iowait, irq, softirq, steal.
std::chrono::nanoseconds busy_time()
{
    std::ifstream file{"/proc/stat"};
    std::string name;
    file >> name;
    std::int64_t busy = 0;
    for (auto column = 0; column < 8; ++column) {
        std::int64_t ticks = 0;
        file >> ticks;
        busy += column == 3 || column == 4 ? 0 : ticks;
    }
    return file ? std::chrono::nanoseconds{busy * (1'000'000'000 / ::sysconf(_SC_CLK_TCK))}
                : std::chrono::nanoseconds{0};
}

}  // namespace

cpu_time cpu_time_now()
{
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return {duration_of(used.ru_utime) + duration_of(used.ru_stime), busy_time()};
}

}  // namespace gpurx::perf
