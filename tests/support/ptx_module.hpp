// SPDX-License-Identifier: Apache-2.0
//
// Code for the GPU as its compiler writes it: PTX text, taken apart. Knows the integer instructions, memory, warps and
// barriers that this project's kernels use, and refuses everything else by its name. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ptx_arithmetic.hpp"

namespace ptx {

// With the line of the text.
class parse_error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A register, or one of the kernel's constants.
struct operand {
    bool is_constant = false;
    std::uint32_t index = 0;
};

enum class action {
    compute,
    pack,    // registers in a row become one
    unpack,  // and the other way round
    load,
    store,
    atomic,
    shuffle,
    reduce,
    vote,
    multiply_bits,  // matrices of bits, of all lanes: and, and count
    read_time,
    block_barrier,
    warp_barrier,
    fence,
    branch,
    end,
};

enum class space { parameter, shared, global };
enum class shuffle_mode { from, up, down, exchange };
enum class vote_mode { all, any, ballot };

struct instruction {
    action does = action::compute;
    std::string text;
    unsigned line = 0;
    bool guarded = false;
    bool guard_inverted = false;
    std::uint32_t guard = 0;  // a register

    std::vector<std::uint32_t> out;  // registers; `nowhere` for one that is not wanted
    std::vector<operand> in;         // of memory the address first
    bool exchanges = false;          // an atomic instruction, without regard to what was there
    // What is computed, or what an atomic instruction and a reduction combine with; null for compare-and-swap.
    void (*combine)(lanes& out, inputs const& in) = nullptr;

    space where = space::global;
    unsigned width = 0;  // bytes of one element
    bool is_signed = false;
    std::int64_t offset = 0;  // added to the address
    shuffle_mode shuffles = shuffle_mode::from;
    vote_mode votes = vote_mode::all;
    std::size_t target = 0;  // of a branch: an instruction

    static constexpr std::uint32_t nowhere = 0xffffffff;
};

// Registers that are there from the start, in this order: the first of each kernel.
enum class special : std::uint32_t { tid_x, ntid_x, ctaid_x, nctaid_x, lane, count };

struct range {
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
};

struct register_info {
    std::string name;
    unsigned width = 0;  // bytes; 0: a predicate
};

struct kernel {
    std::string name;
    std::size_t parameter_bytes = 0;
    std::vector<range> parameters;
    std::size_t shared_bytes = 0;
    unsigned max_threads = 1024;  // of a block
    std::vector<register_info> registers;
    std::vector<std::uint64_t> constants;
    std::vector<instruction> code;
};

// By name. Throws parse_error.
using kernels = std::map<std::string, kernel, std::less<>>;
[[nodiscard]] kernels parse(std::string_view text);

}  // namespace ptx
