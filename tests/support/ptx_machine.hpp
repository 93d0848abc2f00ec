// SPDX-License-Identifier: Apache-2.0
//
// Runs PTX (ptx_module.hpp) on the CPU, as a GPU may run it at worst: each lane has a program counter of its own, lanes
// that have gone different ways come together only where an instruction makes them, and what the language leaves
// undefined is an error. It counts what costs time on a GPU.
//
// A fault ends the launch: an access outside of memory or not aligned, a read of a register or of shared memory that
// nothing was written to, of shared memory that another warp wrote with no barrier in between, a barrier or an exchange
// between lanes that not all of its threads come to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ptx_module.hpp"

namespace ptx {

// Bytes that a kernel may touch.
struct view {
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
    std::byte* bytes = nullptr;
};

class memory {
  public:
    virtual ~memory() = default;
    // What is there around this address; nothing if the kernel must not touch it. Stays valid for the launch.
    [[nodiscard]] virtual std::optional<view> look(std::uint64_t address) = 0;
};

struct launch {
    unsigned blocks = 1;
    unsigned threads = warp_lanes;  // of a block
    std::vector<std::byte> parameters;
    // Where set: all blocks at once, in an order by chance from here of their warps, and of the ways that lanes have
    // gone. Else one block after the other, and of a warp's lanes first those that are behind.
    std::optional<std::uint64_t> seed;
    // Where set: the kernel writes each byte of these by a plain store, and none outside of these and of `may_write`.
    std::optional<std::vector<range>> writes;
    std::vector<range> may_write;
    // Of a warp: more are taken for an endless loop.
    std::uint64_t most_instructions = std::uint64_t{1} << 32;
};

// What warps did, all together.
struct counters {
    std::uint64_t instructions = 0;
    std::uint64_t load_requests = 0;  // of global memory
    std::uint64_t load_sectors = 0;   // of 32 bytes
    std::uint64_t store_requests = 0;
    std::uint64_t store_sectors = 0;
    std::uint64_t shared_requests = 0;
    std::uint64_t shared_conflicts = 0;  // accesses that had to wait for one of the same request
    std::uint64_t atomics = 0;
    // Of the warp with the most: how often a load of global memory had to wait for one before it, which is where
    // another instruction needs that one's value first.
    std::uint64_t loads_in_series = 0;
};

struct report {
    std::optional<std::string> fault;
    bool fault_of_memory = false;         // an access where there is none
    std::vector<std::string> violations;  // that ended nothing; the first few
    counters counted;
    std::vector<std::uint64_t> executed;  // by instruction: how often, by a lane at least; a branch: taken or not
};

[[nodiscard]] report run(kernel const& code, launch const& how, memory& in);

// The instructions that were not executed, as "line 12: add.s32".
[[nodiscard]] std::vector<std::string> never_executed(kernel const& code, std::vector<std::uint64_t> const& executed);

}  // namespace ptx
