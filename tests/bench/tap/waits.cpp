// SPDX-License-Identifier: Apache-2.0
#include "waits.hpp"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

namespace bench {

namespace {

using gpurx::detail::unique_fd;

unique_fd open_counter(perf_event_attr attributes)
{
    attributes.size = sizeof attributes;
    constexpr int this_thread = 0;
    constexpr int any_cpu = -1;
    constexpr int no_group = -1;
    return unique_fd{static_cast<int>(
        ::syscall(SYS_perf_event_open, &attributes, this_thread, any_cpu, no_group, PERF_FLAG_FD_CLOEXEC))};
}

// Counts calls of a function of the kernel.
unique_fd count_calls(unsigned type, char const* function)
{
    perf_event_attr attributes{};
    attributes.type = type;
    attributes.kprobe_func = reinterpret_cast<std::uintptr_t>(function);
    return open_counter(attributes);
}

}  // namespace

grace_periods::grace_periods()
{
    unsigned type = 0;
    std::ifstream file{"/sys/bus/event_source/devices/kprobe/type"};
    if (!(file >> type)) {
        refusal_ = "this kernel has no kprobes for perf";
        return;
    }
    std::size_t next = 0;
    for (auto const* const function : {"synchronize_rcu", "synchronize_rcu_expedited"}) {
        auto& counter = counters_[next++];
        counter = count_calls(type, function);
        if (!counter)
            refusal_ = std::string{"no kprobe on "} + function + ": " + std::generic_category().message(errno);
    }
}

std::uint64_t grace_periods::waited_for() const
{
    std::uint64_t sum = 0;
    for (auto const& counter : counters_) {
        std::uint64_t count = 0;
        if (counter && ::read(counter.get(), &count, sizeof count) == sizeof count)
            sum += count;
    }
    return sum;
}

std::string instructions_refused()
{
    perf_event_attr attributes{};
    attributes.type = PERF_TYPE_HARDWARE;
    attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
    return open_counter(attributes) ? std::string{} : "perf cannot: " + std::generic_category().message(errno);
}

}  // namespace bench
