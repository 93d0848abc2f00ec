// SPDX-License-Identifier: Apache-2.0
//
// One measurement: fill the receive queues of some flows, drain them, give all pages back.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "../overhead/sender.hpp"
#include "calls.h"
#include "syscalls.hpp"

namespace bench {

using batches = std::array<unsigned, 3>;  // fragments in a call that gives pages back

// Fragments that the control buffer holds, except where calls shall end early.
inline constexpr unsigned whole_control = 128;

// One way to fill the queues and to drain them.
struct series {
    std::uint32_t page_size;
    bool segmented;  // a fragment is one segment, not a whole page
    unsigned flows;
    unsigned control;     // fragments that fit into the control buffer, at most whole_control
    std::uint64_t bytes;  // of each flow
    batches released;     // each for a third of what was received
};

class round {
  public:
    // `number` rotates the order of the batch sizes. Lines of output start with their kind and then `label`.
    round(std::string label, series const& what, unsigned number);

    // Connects to `listener`, waits until everything is in the queues. Throws std::system_error.
    void fill(int listener, std::deque<sender>& senders);
    // Takes all of it, then gives back a third in batches of each size, and prints what that took. `array`: which kind
    // of tokens is expected; throws std::runtime_error at another.
    void drain(bool array);

  private:
    struct flow {
        gpurx::detail::unique_fd socket;
        std::uint64_t queued = 0;
        std::vector<std::uint32_t> sizes{};
        std::vector<std::uint32_t> tokens{};
        std::size_t released = 0;
    };
    struct call {
        std::uint64_t instructions;
        unsigned fragments;
    };

    void receive();
    [[nodiscard]] call receive_from(flow& from);
    void print_calls(std::vector<call> const& calls) const;
    void check_kind(bool array) const;
    void release(unsigned batch, std::size_t part);
    void release_rest();

    std::string label_;
    series what_;
    unsigned number_;
    std::vector<char> control_;
    std::vector<char> host_;  // longer than what `control_` can describe: calls end because that is full
    std::vector<flow> flows_;
};

}  // namespace bench
