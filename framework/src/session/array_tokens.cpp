// SPDX-License-Identifier: Apache-2.0
#include "array_tokens.hpp"

#include <fmt/format.h>

#include "base/byte_size.hpp"

namespace gpurx::detail {

std::string explain_tokens(bool in_kernel, std::uint64_t bytes, std::size_t page_size)
{
    if (!in_kernel)
        return "xarray tokens, as this kernel has no array tokens";
    if (fits_array_tokens(bytes, page_size))
        return "array tokens, which cost less to give back";
    return fmt::format(
        "xarray tokens, as array tokens name at most {} pages and {} have {} of {}: larger pages make fewer",
        most_array_token_pages, size_text(bytes), bytes / page_size, size_text(page_size));
}

}  // namespace gpurx::detail
