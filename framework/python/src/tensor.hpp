// SPDX-License-Identifier: Apache-2.0
//
// Tensor: bytes with a type and a shape, which other libraries take through DLPack. Also the memory of the bytes,
// shared by all users: Python's tensors, and the tensors that other libraries made of them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/ingest/buffer.hpp>
#include <gpurx/ingest/dtype.hpp>
#include <gpurx/ingest/tensor_stream.hpp>
#include <gpurx/views.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "conversions.hpp"

namespace gpurx::python {

namespace nb = nanobind;

// Destroyed in any thread, without Python's lock. The stream waits for work that consumers of a GPU's memory have
// enqueued by then; the thread does not.
class storage {
  public:
    // A batch returns to its stream's memory, a buffer to the system.
    using contents = std::variant<ingest::buffer, ingest::batch>;

    // On a GPU, work enqueued on `stream` from now on sees the bytes. Null on the host.
    storage(contents what, int gpu, std::shared_ptr<cuda_stream const> stream, bool read_only) noexcept
        : stream_{std::move(stream)}, contents_{std::move(what)}, gpu_{gpu}, read_only_{read_only}
    {}
    storage(storage const&) = delete;
    storage& operator=(storage const&) = delete;
    ~storage();

    // The GPU's ordinal, or `host`.
    [[nodiscard]] int gpu() const noexcept { return gpu_; }
    [[nodiscard]] bool read_only() const noexcept { return read_only_; }
    [[nodiscard]] std::shared_ptr<cuda_stream const> const& stream() const noexcept { return stream_; }

    // Work enqueued on `consumer` from now on sees the bytes. They change only after the work enqueued there before the
    // last user released them. On a GPU only. Throws gpurx::system_error.
    void use_on(cuda_stream_ref consumer);
    // As above, without making the bytes visible.
    void note_use_on(cuda_stream_ref consumer);
    // Returns the stream of that GPU for all copies there, which see the bytes. It lives as long as this storage, which
    // waits for it as for a consumer's. Throws gpurx::system_error.
    [[nodiscard]] std::shared_ptr<cuda_stream const> stream_to(int gpu);

  private:
    std::shared_ptr<cuda_stream const> stream_;  // outlives the batch
    contents contents_;
    int gpu_;
    bool read_only_;
    std::mutex mutex_;  // guards the members below
    std::vector<cuda_stream_ref> consumers_;
    std::vector<std::pair<int, std::shared_ptr<cuda_stream const>>> streams_to_;
};

// Row-major and contiguous. Any thread may use and destroy it.
struct tensor {
    std::shared_ptr<storage> memory;
    memory_span bytes;
    ingest::dtype type = ingest::dtype::u8;
    std::vector<std::int64_t> shape;
    bool copied = false;  // the consumer requested the copy

    [[nodiscard]] std::size_t elements() const noexcept;
};

// The name in numpy and PyTorch: "float32", "bfloat16".
[[nodiscard]] std::string_view python_name_of(ingest::dtype type) noexcept;
// "cpu", "cuda:0"
[[nodiscard]] std::string device_name(int gpu);

// Returns a copy in other memory, on a GPU in the order of its stream. Must not hold Python's lock. Throws
// gpurx::system_error.
[[nodiscard]] tensor copy_to(tensor const& from, int gpu);

// Returns a copy of these bytes, for tests and files on disk. Throws nb::value_error if their number does not fit type
// and shape.
[[nodiscard]] tensor tensor_of_bytes(nb::bytes const& data, std::string_view type, std::vector<std::int64_t> shape,
                                     nb::handle device, bool read_only);

// ---- dlpack.cpp: capsules, by the rules of the array API standard (__dlpack__, __dlpack_device__) ----

[[nodiscard]] std::pair<std::int32_t, std::int32_t> dlpack_device(tensor const& of);

// `stream` is None or a value of the standard. Without `max_version` the capsule has the format before version 1.0. It
// has no read-only flag, so read-only bytes raise BufferError.
[[nodiscard]] nb::object to_dlpack(tensor const& from, nb::object const& stream,
                                   std::optional<std::pair<int, int>> max_version,
                                   std::optional<std::pair<int, int>> device, std::optional<bool> copy);

}  // namespace gpurx::python
