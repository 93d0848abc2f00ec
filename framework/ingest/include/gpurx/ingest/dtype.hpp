// SPDX-License-Identifier: Apache-2.0
//
// Element types of tensors, numbered as DLPack numbers them: on the wire, in Python and here it is the same number.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpurx::ingest {

// DLDataType (dlpack.h 1.1) with one lane: its code times 256, plus its bits.
enum class dtype : std::uint16_t {
    i8 = 0x0008,
    i16 = 0x0010,
    i32 = 0x0020,
    i64 = 0x0040,
    u8 = 0x0108,
    u16 = 0x0110,
    u32 = 0x0120,
    u64 = 0x0140,
    f16 = 0x0210,
    f32 = 0x0220,
    f64 = 0x0240,
    bf16 = 0x0410,
    c64 = 0x0540,
    c128 = 0x0580,
    boolean = 0x0608,
    f8_e4m3 = 0x0a08,  // as safetensors and PyTorch mean it: e4m3fn
    f8_e4m3fnuz = 0x0b08,
    f8_e5m2 = 0x0c08,
    f8_e5m2fnuz = 0x0d08,
    f8_e8m0 = 0x0e08,
    f6_e2m3 = 0x0f06,
    f6_e3m2 = 0x1006,
    f4_e2m1 = 0x1104,
};

[[nodiscard]] constexpr unsigned bits_of(dtype type) noexcept
{
    return static_cast<unsigned>(type) & 0xff;
}
// DLDataTypeCode.
[[nodiscard]] constexpr unsigned dlpack_code_of(dtype type) noexcept
{
    return static_cast<unsigned>(type) >> 8;
}
// Whether the number is one of the above.
[[nodiscard]] bool is_dtype(std::uint16_t number) noexcept;

// As safetensors spells them: "F32", "BOOL", "F8_E4M3".
[[nodiscard]] std::string_view name_of(dtype type) noexcept;
[[nodiscard]] std::optional<dtype> dtype_named(std::string_view name) noexcept;

}  // namespace gpurx::ingest
