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
#include "base/syscalls.hpp"
#include "calls.h"

namespace bench {

// stock: those of a kernel as it is. owner, shared: array tokens, for the socket alone or for all of the binding.
// again: owner tokens of pages that the socket has already, by MSG_PEEK.
enum class token_kind : std::uint8_t { stock, owner, shared, again };

using batches = std::array<unsigned, 3>;  // fragments in a call that gives pages back

// Fragments that the control buffer holds, except where calls shall end early.
inline constexpr unsigned whole_control = 128;

// One way to fill the queues and to drain them.
struct series {
    std::uint32_t page_size;
    bool segmented;    // a fragment is one segment, not a whole page
    unsigned packing;  // of segments into pages: the fault `pack` of devmemsim
    unsigned flows;
    unsigned control;     // fragments that fit into the control buffer, at most whole_control
    std::uint64_t bytes;  // of each flow
    batches released;     // each for a third of what was received
    bool raced;           // by two threads
    bool closed;          // with one fragment not given back
};

class round {
  public:
    // `number` rotates the order of the batch sizes. Lines of output start with their kind and then `label`.
    round(token_kind kind, std::string label, series const& what, unsigned number);

    // Connects to `listener`, waits until everything is in the queues. Throws std::system_error.
    void fill(int listener, std::deque<sender>& senders);
    // Takes all of it, then gives back a third in batches of each size, and prints what that took. Throws
    // std::runtime_error at tokens that are not of the kind.
    void drain();
    // Takes all of the only flow, gives back all but one fragment, and closes the socket such that it is gone at once.
    // Prints what close() took. Throws like drain().
    void close_with_one();
    // Each of two threads takes half of the flows: receives 128 fragments, gives them back, and so on. Prints how long
    // it took all in all.
    void race();

  private:
    struct flow {
        gpurx::detail::unique_fd socket;
        std::uint64_t queued = 0;
        std::vector<std::uint32_t> sizes{};
        std::vector<std::uint32_t> tokens{};
        std::size_t released = 0;
        std::vector<std::uint32_t> peeked{};
    };
    struct call {
        std::uint64_t instructions;
        unsigned fragments;
    };

    void receive();
    [[nodiscard]] call receive_from(flow& from);
    void print_calls(std::vector<call> const& calls) const;
    void peek(flow& at);
    void check_kind() const;
    void release(unsigned batch, std::size_t part);
    void drain_alone(flow& one) const;
    static void release_unmeasured(flow const& of, std::vector<std::uint32_t> const& tokens, std::size_t from);

    token_kind kind_;
    std::string label_;
    series what_;
    unsigned number_;
    std::vector<char> control_;
    std::vector<char> host_;  // longer than what `control_` can describe: calls end because that is full
    std::vector<flow> flows_;
};

}  // namespace bench
