// SPDX-License-Identifier: Apache-2.0
//
// One instruction of PTX, taken apart: for ptx_module.cpp. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ptx_module.hpp"
#include "ptx_words.hpp"

namespace ptx::inside {

// What the instructions of a kernel may name.
struct names {
    std::map<std::string, std::uint32_t, std::less<>> registers;
    std::map<std::string, std::uint64_t, std::less<>> symbols;  // of parameters and shared memory: where they begin
};

class instruction_reader {
  public:
    // Adds what it meets to the kernel's constants.
    instruction_reader(reader& from, names const& known, std::vector<std::uint64_t>& constants)
        : from_{from}, known_{known}, constants_{constants}
    {}
    // Of a branch without its target: to this label.
    [[nodiscard]] instruction read(std::optional<std::string>& label);

  private:
    void read_body(instruction& into, std::string_view mnemonic, std::optional<std::string>& label);
    void read_compute(instruction& into, std::string_view mnemonic);
    void read_move_of_several(instruction& into, std::vector<std::string_view> const& parts);
    void read_timer(instruction& into);
    void read_memory(instruction& into, std::vector<std::string_view> const& parts);
    void read_atomic(instruction& into, std::vector<std::string_view> const& parts);
    void read_shuffle(instruction& into, std::vector<std::string_view> const& parts);
    void read_reduction(instruction& into, std::vector<std::string_view> const& parts);
    void read_vote(instruction& into, std::vector<std::string_view> const& parts);
    void read_matrices(instruction& into, std::string_view mnemonic);
    void read_block_barrier(instruction& into);

    [[noreturn]] void unknown(instruction const& what) { refuse(what.line, "unknown instruction: " + what.text); }

    std::uint32_t destination();
    operand input();
    operand constant(std::uint64_t value);
    std::vector<std::uint32_t> destinations();
    std::vector<operand> inputs_in_a_row();
    void address(instruction& into);

    reader& from_;
    names const& known_;
    std::vector<std::uint64_t>& constants_;
};

}  // namespace ptx::inside
