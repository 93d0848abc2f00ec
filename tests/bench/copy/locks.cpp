// SPDX-License-Identifier: Apache-2.0
#include "locks.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "fake_cuda.hpp"

extern "C" char __executable_start;
extern "C" char etext;

namespace gpurx::bench {

namespace {

using mutex_call = int (*)(pthread_mutex_t*);

struct use {
    std::uint32_t lanes = 0;
    std::size_t calls = 0;
};

std::map<void*, use>& uses()
{
    static std::map<void*, use> all;
    return all;
}

constexpr unsigned no_lane = 32;
thread_local unsigned lane = no_lane;
thread_local bool inside = false;  // what the count itself locks is not counted
thread_local std::vector<std::pair<void*, std::size_t>>* held = nullptr;

mutex_call next(char const* name)
{
    return reinterpret_cast<mutex_call>(::dlsym(RTLD_NEXT, name));
}

pthread_mutex_t guards_uses = PTHREAD_MUTEX_INITIALIZER;

// The driver is another part of the program, and its locks are its own.
bool is_of_library(void const* caller)
{
    return caller >= &__executable_start && caller < &etext;
}

std::size_t calls_so_far()
{
    std::size_t sum = 0;
    for (auto const& [name, count] : fake_cuda::calls_of_this_thread())
        sum += count;
    return sum;
}

void note_lock(void* mutex)
{
    inside = true;
    held->emplace_back(mutex, calls_so_far());
    inside = false;
}

void note_unlock(void* mutex)
{
    static auto const lock = next("pthread_mutex_lock");
    static auto const unlock = next("pthread_mutex_unlock");
    inside = true;
    for (auto at = held->begin(); at != held->end(); ++at) {
        if (at->first != mutex)
            continue;
        auto const calls = calls_so_far() - at->second;
        held->erase(at);
        lock(&guards_uses);
        auto& of = uses()[mutex];
        of.lanes |= std::uint32_t{1} << lane;
        of.calls += calls;
        unlock(&guards_uses);
        break;
    }
    inside = false;
}

}  // namespace

void count_as_lane(unsigned number)
{
    lane = number;
    static thread_local std::vector<std::pair<void*, std::size_t>> mine;
    held = &mine;
}

std::size_t calls_under_shared_locks()
{
    std::size_t sum = 0;
    for (auto const& [mutex, of] : uses())
        sum += std::popcount(of.lanes) > 1 ? of.calls : 0;
    return sum;
}

}  // namespace gpurx::bench

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept
{
    using namespace gpurx::bench;
    static auto const real = next("pthread_mutex_lock");
    auto const result = real(mutex);
    if (lane != no_lane && !inside && is_of_library(__builtin_return_address(0)))
        note_lock(mutex);
    return result;
}

extern "C" int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept
{
    using namespace gpurx::bench;
    static auto const real = next("pthread_mutex_unlock");
    if (lane != no_lane && !inside && is_of_library(__builtin_return_address(0)))
        note_unlock(mutex);
    return real(mutex);
}
