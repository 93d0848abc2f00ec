// SPDX-License-Identifier: Apache-2.0
//
// The binary interface of DLPack (dlpack.h, versions 0.8 and 1.1): how one library hands a tensor to another.
#pragma once

#include <cstdint>
#include <type_traits>

namespace gpurx::python::dlpack {

struct version {
    std::uint32_t major;
    std::uint32_t minor;
};

// Newer minor versions add meanings and no members.
inline constexpr version newest{1, 1};

enum class device_type : std::int32_t { cpu = 1, cuda = 2 };

struct device {
    device_type type;
    std::int32_t number;

    friend bool operator==(device const&, device const&) = default;
};

struct data_type {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct tensor {
    void* data;
    dlpack::device device;
    std::int32_t dimensions;
    data_type type;
    std::int64_t* shape;
    std::int64_t* strides;  // counted in elements
    std::uint64_t byte_offset;
};

// Until version 1.0: capsules named "dltensor".
struct managed_tensor {
    dlpack::tensor tensor;
    void* context;
    void (*deleter)(managed_tensor*);
};

inline constexpr std::uint64_t read_only = 1 << 0;
inline constexpr std::uint64_t is_copied = 1 << 1;

// From version 1.0: capsules named "dltensor_versioned".
struct managed_tensor_versioned {
    dlpack::version version;
    void* context;
    void (*deleter)(managed_tensor_versioned*);
    std::uint64_t flags;
    dlpack::tensor tensor;
};

static_assert(std::is_standard_layout_v<managed_tensor> && sizeof(managed_tensor) == 64);
static_assert(std::is_standard_layout_v<managed_tensor_versioned> && sizeof(managed_tensor_versioned) == 80);

}  // namespace gpurx::python::dlpack
