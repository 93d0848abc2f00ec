// SPDX-License-Identifier: Apache-2.0
#include "session/array_tokens.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstddef>
#include <cstdint>

#include "base/byte_size.hpp"

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using gpurx::detail::explain_tokens;
using gpurx::detail::fits_array_tokens;
using gpurx::detail::kibibyte;

namespace {

constexpr std::uint64_t half_tebibyte = std::uint64_t{1} << 39U;

}  // namespace

TEST_CASE("a memory has array tokens if it has less than 2^27 pages")
{
    struct row {
        std::uint64_t bytes;
        std::size_t page;
        bool fits;
    };
    for (auto const& [bytes, page, fits] : {
             row{half_tebibyte - 4 * kibibyte, 4 * kibibyte, true},
             row{half_tebibyte, 4 * kibibyte, false},
             row{half_tebibyte, 8 * kibibyte, true},
             row{2 * half_tebibyte, 8 * kibibyte, false},
             row{2 * half_tebibyte, 64 * kibibyte, true},
         }) {
        CAPTURE(bytes, page);
        CHECK(fits_array_tokens(bytes, page) == fits);
    }
}

TEST_CASE("explain() says which tokens there are, and why not the cheap ones")
{
    CHECK_THAT(explain_tokens(true, 64 * kibibyte, 4 * kibibyte), StartsWith("array tokens"));
    CHECK_THAT(explain_tokens(false, 64 * kibibyte, 4 * kibibyte),
               StartsWith("xarray tokens") && ContainsSubstring("this kernel has no array tokens"));
    CHECK_THAT(explain_tokens(false, half_tebibyte, 4 * kibibyte),
               ContainsSubstring("this kernel has no array tokens"));

    auto const too_many = explain_tokens(true, half_tebibyte, 4 * kibibyte);
    CHECK_THAT(too_many, StartsWith("xarray tokens") && ContainsSubstring("134217727 pages"));
    CHECK_THAT(too_many, ContainsSubstring("134217728 of 4 KiB") && ContainsSubstring("larger pages make fewer"));
}
