// SPDX-License-Identifier: Apache-2.0
//
// The ways to open a packet socket that are compared.
#pragma once

#include <chrono>
#include <cstdint>

#include "waits.hpp"

namespace bench {

enum class opening {
    everywhere,      // the protocol at socket(), bind() to all interfaces
    one_interface,   // the protocol at socket(), bind() to one
    protocol_later,  // none at socket(), bind() to one interface with it
    tap,             // the tap of gpurx-doctor: as protocol_later, with ring and filter
};
inline constexpr opening every_opening[] = {opening::everywhere, opening::one_interface, opening::protocol_later,
                                            opening::tap};
[[nodiscard]] char const* to_string(opening value) noexcept;

// Of this thread.
[[nodiscard]] std::chrono::nanoseconds cpu_time() noexcept;

// Of socket() and bind(), or all that the tap does; closing comes after it and is not in it.
struct opening_cost {
    std::chrono::nanoseconds time{};
    std::chrono::nanoseconds cpu_time{};  // of this thread; in the lab with --exact: guest instructions
    std::uint64_t grace_periods = 0;      // waited for
};
// Throws std::system_error, gpurx::system_error.
[[nodiscard]] opening_cost measure(opening what, unsigned interface, grace_periods const& counter);

}  // namespace bench
