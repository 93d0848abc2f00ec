// SPDX-License-Identifier: Apache-2.0
//
// Which tokens the kernel lends pages by (docs/setup.md, Tokens): that it has array tokens is not enough, a binding
// must not have too many pages for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpurx::detail {

// An array token has 27 bits for the page, 0 of which is none. A binding with more pages has xarray tokens only.
inline constexpr std::uint64_t most_array_token_pages = (1U << 27U) - 1;

// Whether a binding of `bytes` in pages of `page_size` bytes can have array tokens.
[[nodiscard]] constexpr bool fits_array_tokens(std::uint64_t bytes, std::size_t page_size) noexcept
{
    return bytes / page_size <= most_array_token_pages;
}

// For explain(): which tokens, and why. `in_kernel`: the kernel has array tokens.
[[nodiscard]] std::string explain_tokens(bool in_kernel, std::uint64_t bytes, std::size_t page_size);

}  // namespace gpurx::detail
