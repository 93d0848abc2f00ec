// SPDX-License-Identifier: Apache-2.0
//
// One launch. In ptx_machine.cpp whose turn it is, in ptx_registers.cpp and ptx_accesses.cpp what instructions do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "ptx_machine.hpp"
#include "ptx_memory.hpp"
#include "ptx_warp.hpp"

namespace ptx::inside {

class machine {
  public:
    machine(kernel const& code, launch const& how, memory& in, report& into);
    void run();

  private:
    block make_block(unsigned index) const;
    void start(warp& of, block const& in) const;
    void run_in_order();
    void run_by_chance();
    void settle(block& of);

    void step(block& in, warp& of);
    lane_mask choose(warp& of);
    bool execute(block& in, warp& of, instruction const& what, lane_mask group, lane_mask active);
    void go_to(warp& of, lane_mask group, std::size_t to) const;

    lanes const& value(warp const& of, operand const& from, lane_mask active);
    void set(warp& of, std::uint32_t to, lane_mask active, lanes const& values, std::uint32_t ready);
    void need(warp& of, std::uint32_t index) const { of.time = std::max(of.time, of.ready[index]); }
    lane_mask guard(warp& of, instruction const& what, lane_mask group);
    // Whether all the lanes that the instruction names are there.
    bool together(warp& of, instruction const& what, lane_mask group, operand const& named);

    void compute(warp& of, instruction const& what, lane_mask active);
    void pack(warp& of, instruction const& what, lane_mask active);
    void unpack(warp& of, instruction const& what, lane_mask active);
    void load(block& in, warp& of, instruction const& what, lane_mask active);
    void store(block& in, warp& of, instruction const& what, lane_mask active);
    void atomic(block& in, warp& of, instruction const& what, lane_mask active);
    void shuffle(warp& of, instruction const& what, lane_mask active);
    void reduce(warp& of, instruction const& what, lane_mask active);
    void vote(warp& of, instruction const& what, lane_mask active);
    void multiply_bits(warp& of, instruction const& what, lane_mask active);
    void read_time(warp& of, instruction const& what, lane_mask active);
    std::byte* find(block& in, warp const& of, instruction const& what, access const& one, bool store);
    void count(instruction const& what, std::span<access const> accesses);
    void arrive(warp& of, lane_mask group, lane_mask active);
    void note_executed(std::size_t at, lane_mask by);
    void branch(warp& of, instruction const& what, lane_mask group, lane_mask active) const;

    unsigned choose_of(std::size_t count) { return static_cast<unsigned>(chance_() % count); }

    kernel const& code_;
    launch const& how_;
    report& report_;
    global_memory memory_;
    std::vector<lanes> constants_;
    std::mt19937_64 chance_;
};

}  // namespace ptx::inside
