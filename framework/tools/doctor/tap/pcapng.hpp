// SPDX-License-Identifier: Apache-2.0
//
// Blocks of a pcapng file with one section and one Ethernet interface, in this machine's byte order. Each is added to
// the end of `file`. No I/O.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "frame.hpp"

namespace gpurx::doctor::tap {

using bytes = std::vector<std::byte>;

// The first two, once, in this order.
void put_section(bytes& file, std::string_view application);
void put_interface(bytes& file, std::string_view name, std::uint32_t most_captured);

// `captured` of a frame of `length` bytes.
void put_packet(bytes& file, moment when, std::span<std::byte const> captured, std::uint32_t length, bool outgoing);

// The last: what was captured, and what was lost.
void put_statistics(bytes& file, moment when, std::uint64_t received, std::uint64_t dropped);

}  // namespace gpurx::doctor::tap
