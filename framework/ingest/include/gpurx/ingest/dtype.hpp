// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Element types of tensors, with DLPack's numbers.
///
/// The wire, Python and this header use the same numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpurx::ingest {

/// @brief Element type of a tensor: `DLDataType` of dlpack.h 1.1 with one lane.
///
/// A value is DLPack's type code times 256, plus the bits of an element.
enum class dtype : std::uint16_t {
    i8 = 0x0008,           ///< Signed integer of 8 bits.
    i16 = 0x0010,          ///< Signed integer of 16 bits.
    i32 = 0x0020,          ///< Signed integer of 32 bits.
    i64 = 0x0040,          ///< Signed integer of 64 bits.
    u8 = 0x0108,           ///< Unsigned integer of 8 bits.
    u16 = 0x0110,          ///< Unsigned integer of 16 bits.
    u32 = 0x0120,          ///< Unsigned integer of 32 bits.
    u64 = 0x0140,          ///< Unsigned integer of 64 bits.
    f16 = 0x0210,          ///< Floating point of 16 bits, IEEE 754 half precision.
    f32 = 0x0220,          ///< Floating point of 32 bits.
    f64 = 0x0240,          ///< Floating point of 64 bits.
    bf16 = 0x0410,         ///< bfloat16.
    c64 = 0x0540,          ///< Complex number of two f32.
    c128 = 0x0580,         ///< Complex number of two f64.
    boolean = 0x0608,      ///< Boolean of 8 bits.
    f8_e4m3 = 0x0a08,      ///< Floating point of 8 bits, e4m3fn, as in safetensors and PyTorch.
    f8_e4m3fnuz = 0x0b08,  ///< Floating point of 8 bits, e4m3fnuz.
    f8_e5m2 = 0x0c08,      ///< Floating point of 8 bits, e5m2.
    f8_e5m2fnuz = 0x0d08,  ///< Floating point of 8 bits, e5m2fnuz.
    f8_e8m0 = 0x0e08,      ///< Exponent of 8 bits, e8m0.
    f6_e2m3 = 0x0f06,      ///< Floating point of 6 bits, e2m3.
    f6_e3m2 = 0x1006,      ///< Floating point of 6 bits, e3m2.
    f4_e2m1 = 0x1104,      ///< Floating point of 4 bits, e2m1.
};

/// @brief Returns the bits of an element.
[[nodiscard]] constexpr unsigned bits_of(dtype type) noexcept
{
    return static_cast<unsigned>(type) & 0xff;
}
/// @brief Returns DLPack's type code, a `DLDataTypeCode`.
[[nodiscard]] constexpr unsigned dlpack_code_of(dtype type) noexcept
{
    return static_cast<unsigned>(type) >> 8;
}
/// @brief Returns whether the number is a value of dtype.
[[nodiscard]] bool is_dtype(std::uint16_t number) noexcept;

/// @brief Returns the name in safetensors' spelling: "F32", "BOOL", "F8_E4M3".
[[nodiscard]] std::string_view name_of(dtype type) noexcept;
/// @brief Returns the type of a name in safetensors' spelling; empty if unknown.
[[nodiscard]] std::optional<dtype> dtype_named(std::string_view name) noexcept;

}  // namespace gpurx::ingest
