// SPDX-License-Identifier: Apache-2.0
//
// RSS indirection tables: for each value of a packet's hash, the queue it goes to. Decisions only; no I/O.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

namespace gpurx::detail {

using indirection_table = std::vector<std::uint32_t>;

// `table` with no entry that points at a queue of `avoid`. Other entries stay as they are; those are shared out evenly
// among the queues that the table uses already, or, if it uses no other, among all below `queue_count`. Empty: there is
// no queue left.
[[nodiscard]] indirection_table avoid_queues(indirection_table const& table, unsigned queue_count,
                                             std::set<unsigned> const& avoid);

// The table that a driver makes for `queue_count` queues when nobody asks for another one.
[[nodiscard]] indirection_table default_table(std::size_t size, unsigned queue_count);

// `size` entries that go round `queues`, which is not empty.
[[nodiscard]] indirection_table spread_over(std::size_t size, std::span<unsigned const> queues);

}  // namespace gpurx::detail
