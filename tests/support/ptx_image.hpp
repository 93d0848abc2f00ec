// SPDX-License-Identifier: Apache-2.0
//
// The PTX text in what the CUDA compiler packs for a driver to load, a "fat binary". Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace ptx {

// For a GPU sm_`gpu`, as a driver chooses it: the text for the newest GPUs that are not newer. Empty if this is no such
// thing, or has no such PTX that is there as text.
[[nodiscard]] std::string_view text_in(std::span<std::byte const> fat_binary, unsigned gpu);

// How many bytes there are of one that starts here, by what it says; 0 if this is none.
[[nodiscard]] std::size_t size_of_image(void const* fat_binary);

}  // namespace ptx
