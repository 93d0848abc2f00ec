// SPDX-License-Identifier: Apache-2.0
//
// The steady clock of a program that links this, in the place of the standard library's: a fake_clock can hold it.
#include <ctime>

#include "fake_clock.hpp"

namespace {

[[maybe_unused]] bool const linked = gpurx::test::fake_clock::link();

}  // namespace

// NOLINTNEXTLINE(cert-dcl58-cpp)
std::chrono::steady_clock::time_point std::chrono::steady_clock::now() noexcept
{
    timespec real{};
    ::clock_gettime(CLOCK_MONOTONIC, &real);
    return time_point{
        gpurx::test::fake_clock::shown(std::chrono::seconds{real.tv_sec} + std::chrono::nanoseconds{real.tv_nsec})};
}
