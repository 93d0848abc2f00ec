// SPDX-License-Identifier: Apache-2.0
//
// What one rx_buffer holds. Records are recycled by their flow, so that vectors keep their capacity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gpurx/rx_buffer.hpp>

namespace gpurx::detail {

class session_state;

// Tokens first, first + 1, … first + count - 1 of one socket.
struct token_range {
    std::uint32_t first = 0;
    std::uint32_t count = 0;

    friend bool operator==(token_range const&, token_range const&) = default;
};

// Bytes on the host that a fragment of kind host points into (linear payload, a missed rule).
struct host_chunk {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;
};

struct loan {
    std::vector<fragment> fragments;   // stream order
    std::size_t consumed = 0;          // fragments before this one were taken by async_read
    std::size_t bytes = 0;             // not yet consumed
    std::vector<token_range> tokens;   // transport devmem
    std::vector<std::uint32_t> pages;  // transport copy: pages of the session's pool, one reference each
    host_chunk host;                   // may be empty
    std::vector<std::shared_ptr<session_state>> foreign;  // sessions whose memory re-steered fragments lie in
};

}  // namespace gpurx::detail
