// SPDX-License-Identifier: Apache-2.0
//
// Tensors as DLPack capsules, the exchange format between tensor libraries.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "operation.hpp"
#include "tensor.hpp"

namespace gpurx::python {

// The binary interface (dlpack.h, versions 0.8 and 1.1).
namespace dlpack {

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

}  // namespace dlpack

namespace {

// Streams with a number instead of an address, in DLPack and in CUDA.
constexpr std::uintptr_t legacy_default = 1;
constexpr std::uintptr_t per_thread_default = 2;

// The consumer's stream; nothing: the consumer orders its work itself.
using consumer = std::optional<std::uintptr_t>;

cuda_stream_ref stream_at(std::uintptr_t handle)
{
    return reinterpret_cast<CUstream_st*>(handle);
}

dlpack::device device_of(int gpu)
{
    return gpu == host ? dlpack::device{dlpack::device_type::cpu, 0}
                       : dlpack::device{dlpack::device_type::cuda, static_cast<std::int32_t>(gpu)};
}

// The requested GPU, or `host`.
int wanted_gpu(tensor const& from, std::optional<std::pair<int, int>> const& device)
{
    if (!device)
        return from.memory->gpu();
    auto const [type, number] = *device;
    if (type == static_cast<int>(dlpack::device_type::cpu) && number == 0)
        return host;
    if (type == static_cast<int>(dlpack::device_type::cuda) && number >= 0)
        return number;
    throw nb::buffer_error(fmt::format("gpurx has no memory on DLPack device ({}, {})", type, number).c_str());
}

// `gpu`: the memory of the bytes, or of their copy.
consumer consumer_of(nb::object const& stream, int gpu)
{
    if (gpu == host) {
        if (!stream.is_none())
            throw nb::value_error("a tensor in the host's memory has no stream: stream must be None");
        return std::nullopt;
    }
    if (stream.is_none())
        return legacy_default;
    if (!nb::isinstance<nb::int_>(stream))
        throw nb::type_error("stream must be None or an int");
    std::int64_t number = 0;
    if (nb::try_cast(stream, number) && number < 0) {
        if (number != -1)
            throw nb::value_error("stream must be -1, 1, 2 or the address of a CUDA stream");
        return std::nullopt;
    }
    auto const handle = nb::cast<std::uintptr_t>(stream);
    if (handle == 0)
        throw nb::value_error("stream 0 is ambiguous: 1 is CUDA's legacy default stream, 2 that of the thread");
    return handle;
}

void hand_over(storage& memory, consumer to)
{
    if (!to)
        return memory.note_use_on(stream_at(legacy_default));
    if (*to != per_thread_default)
        return memory.use_on(stream_at(*to));
    // Another thread may release the tensor. The legacy default stream waits for the default stream of every thread.
    order_after(stream_at(*to), *memory.stream());
    memory.note_use_on(stream_at(legacy_default));
}

// Content of a capsule.
template <class Managed>
struct exported {
    Managed managed{};
    std::shared_ptr<storage> memory;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;

    explicit exported(tensor const& from) : memory{from.memory}, shape{from.shape}, strides(from.shape.size())
    {
        std::int64_t stride = 1;
        for (auto i = shape.size(); i-- > 0;) {
            strides[i] = stride;
            stride *= std::max<std::int64_t>(shape[i], 1);
        }
        managed.context = this;
        managed.deleter = [](Managed* self) { delete static_cast<exported*>(self->context); };
        managed.tensor = {
            .data = reinterpret_cast<void*>(from.bytes.address()),
            .device = device_of(memory->gpu()),
            .dimensions = static_cast<std::int32_t>(shape.size()),
            .type = {.code = static_cast<std::uint8_t>(ingest::dlpack_code_of(from.type)),
                     .bits = static_cast<std::uint8_t>(ingest::bits_of(from.type)),
                     .lanes = 1},
            .shape = shape.data(),
            .strides = strides.data(),
            .byte_offset = 0,
        };
    }
};

// A consumer renames the capsule, and calls the deleter itself.
template <class Managed>
constexpr char const* capsule_name =
    std::is_same_v<Managed, dlpack::managed_tensor> ? "dltensor" : "dltensor_versioned";

template <class Managed>
nb::object capsule_of(std::unique_ptr<exported<Managed>> what)
{
    auto* const managed = &what->managed;
    auto* const capsule = PyCapsule_New(managed, capsule_name<Managed>, [](PyObject* last) {
        if (PyCapsule_IsValid(last, capsule_name<Managed>) == 0)
            return;
        auto* const left = static_cast<Managed*>(PyCapsule_GetPointer(last, capsule_name<Managed>));
        left->deleter(left);
    });
    if (capsule == nullptr)
        throw nb::python_error();
    static_cast<void>(what.release());
    return nb::steal(capsule);
}

nb::object capsule_with_version(tensor const& from, std::pair<int, int> most)
{
    auto what = std::make_unique<exported<dlpack::managed_tensor_versioned>>(from);
    what->managed.version = dlpack::newest;
    if (most.first == static_cast<int>(dlpack::newest.major))
        what->managed.version.minor =
            std::min(dlpack::newest.minor, static_cast<std::uint32_t>(std::max(most.second, 0)));
    what->managed.flags =
        (from.memory->read_only() ? dlpack::read_only : 0) | (from.copied ? dlpack::is_copied : std::uint64_t{0});
    return capsule_of(std::move(what));
}

}  // namespace

std::pair<std::int32_t, std::int32_t> dlpack_device(tensor const& of)
{
    auto const device = device_of(of.memory->gpu());
    return {static_cast<std::int32_t>(device.type), device.number};
}

nb::object to_dlpack(tensor const& from, nb::object const& stream, std::optional<std::pair<int, int>> max_version,
                     std::optional<std::pair<int, int>> device, std::optional<bool> copy)
{
    auto const gpu = wanted_gpu(from, device);
    auto const elsewhere = gpu != from.memory->gpu();
    if (elsewhere && copy == false)
        throw nb::buffer_error(fmt::format("the tensor is on {}, and without a copy it cannot be on {}",
                                           device_name(from.memory->gpu()), device_name(gpu))
                                   .c_str());
    auto const versioned = max_version && max_version->first >= 1;
    auto const copies = elsewhere || copy == true;
    if (!versioned && !copies && from.memory->read_only())
        throw nb::buffer_error("the tensor is read-only, and DLPack before 1.0 cannot express that: request a copy");
    auto const to = consumer_of(stream, gpu == host ? from.memory->gpu() : gpu);
    tensor here = from;
    if (copies) {
        without_gil const unlocked;
        here = copy_to(from, gpu);
    }
    if (gpu != host)
        hand_over(*here.memory, to);
    if (versioned)
        return capsule_with_version(here, *max_version);
    return capsule_of(std::make_unique<exported<dlpack::managed_tensor>>(here));
}

}  // namespace gpurx::python
