// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <gpurx/ingest/dtype.hpp>

namespace gpurx::ingest {

namespace {

struct entry {
    dtype type;
    std::string_view name;
};

constexpr std::array entries{
    entry{dtype::i8, "I8"},
    entry{dtype::i16, "I16"},
    entry{dtype::i32, "I32"},
    entry{dtype::i64, "I64"},
    entry{dtype::u8, "U8"},
    entry{dtype::u16, "U16"},
    entry{dtype::u32, "U32"},
    entry{dtype::u64, "U64"},
    entry{dtype::f16, "F16"},
    entry{dtype::f32, "F32"},
    entry{dtype::f64, "F64"},
    entry{dtype::bf16, "BF16"},
    entry{dtype::c64, "C64"},
    entry{dtype::c128, "C128"},
    entry{dtype::boolean, "BOOL"},
    entry{dtype::f8_e4m3, "F8_E4M3"},
    entry{dtype::f8_e5m2, "F8_E5M2"},
    entry{dtype::f8_e8m0, "F8_E8M0"},
    entry{dtype::f8_e4m3fnuz, "F8_E4M3FNUZ"},
    entry{dtype::f8_e5m2fnuz, "F8_E5M2FNUZ"},
    entry{dtype::f6_e2m3, "F6_E2M3"},
    entry{dtype::f6_e3m2, "F6_E3M2"},
    entry{dtype::f4_e2m1, "F4"},
};

}  // namespace

bool is_dtype(std::uint16_t number) noexcept
{
    return std::ranges::find(entries, static_cast<dtype>(number), &entry::type) != entries.end();
}

std::string_view name_of(dtype type) noexcept
{
    auto const* const found = std::ranges::find(entries, type, &entry::type);
    return found == entries.end() ? std::string_view{"?"} : found->name;
}

std::optional<dtype> dtype_named(std::string_view name) noexcept
{
    auto const* const found = std::ranges::find(entries, name, &entry::name);
    if (found == entries.end())
        return std::nullopt;
    return found->type;
}

}  // namespace gpurx::ingest
