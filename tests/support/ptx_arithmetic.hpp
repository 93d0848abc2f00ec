// SPDX-License-Identifier: Apache-2.0
//
// What PTX's integer instructions compute, by their full names: "add.s32", "setp.gt.u32". Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ptx {

inline constexpr unsigned warp_lanes = 32;

// A register of all lanes of a warp. The bits above the register's width mean nothing; a predicate is 0 or 1.
using lanes = std::array<std::uint64_t, warp_lanes>;
using inputs = std::array<lanes const*, 4>;

struct arithmetic {
    // For all lanes; `out` may be one of the inputs.
    void (*run)(lanes& out, inputs const& in);
    unsigned inputs;
};

// Nothing if the instruction is not known.
[[nodiscard]] std::optional<arithmetic> find_arithmetic(std::string_view mnemonic);

}  // namespace ptx
