// SPDX-License-Identifier: Apache-2.0
//
// Where the pages of a memory are: how the parts are made to add up, and what is said about them. No I/O.
#pragma once

#include <cstdint>
#include <string>

#include <gpurx/stats.hpp>

namespace gpurx::detail {

// Makes the rest of the parts of what the program holds (on_loan, parked, in_reads), what the rings want (ring_demand)
// and what has left the memory provider, which was counted a moment before or after: a page that the program holds has
// left it.
void divide(pool_stats& account, std::uint64_t in_flight) noexcept;

// For people, transport devmem: a line, and one for each flow that holds pages.
[[nodiscard]] std::string describe(pool_stats const& account);

}  // namespace gpurx::detail
