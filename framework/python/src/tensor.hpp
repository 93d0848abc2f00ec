// SPDX-License-Identifier: Apache-2.0
//
// Tensor: bytes with a type and a shape, for other libraries to take through DLPack; and the memory that they lie in,
// shared by all that look at it: Python's tensors, and what other libraries made of them.
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

// Destroyed in any thread, without Python's lock. What consumers of a GPU's memory have enqueued by then is waited for
// in its stream, and not by the thread.
class storage {
  public:
    // A batch goes back to its stream's memory, a buffer to the system.
    using contents = std::variant<ingest::buffer, ingest::batch>;

    // On a GPU the bytes are there for work that is enqueued on `stream` from now on; null on the host.
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

    // Work that is enqueued on `consumer` from now on sees the bytes, and what is enqueued there before the last user
    // has let go is waited for before they change. On a GPU only. Throws gpurx::system_error.
    void use_on(cuda_stream_ref consumer);
    // Only the second half of that.
    void note_use_on(cuda_stream_ref consumer);
    // One of that GPU for all copies there, which see the bytes. It is there as long as this, which waits for it as
    // for any consumer's. Throws gpurx::system_error.
    [[nodiscard]] std::shared_ptr<cuda_stream const> stream_to(int gpu);

  private:
    std::shared_ptr<cuda_stream const> stream_;  // outlives the batch
    contents contents_;
    int gpu_;
    bool read_only_;
    std::mutex mutex_;  // guards what follows
    std::vector<cuda_stream_ref> consumers_;
    std::vector<std::pair<int, std::shared_ptr<cuda_stream const>>> streams_to_;
};

// Row-major and contiguous. Any thread may have it, and destroy it.
struct tensor {
    std::shared_ptr<storage> memory;
    memory_span bytes;
    ingest::dtype type = ingest::dtype::u8;
    std::vector<std::int64_t> shape;
    bool copied = false;  // made by a consumer's wish, who knows

    [[nodiscard]] std::size_t elements() const noexcept;
};

// As numpy and PyTorch call it: "float32", "bfloat16".
[[nodiscard]] std::string_view python_name_of(ingest::dtype type) noexcept;
// "cpu", "cuda:0"
[[nodiscard]] std::string device_name(int gpu);

// In other memory, on a GPU in the order of its stream. Without Python's lock. Throws gpurx::system_error.
[[nodiscard]] tensor copy_to(tensor const& from, int gpu);

// A copy of these bytes, for tests and for those who have a file on disk. Throws nb::value_error if they are not as
// many as type and shape say.
[[nodiscard]] tensor tensor_of_bytes(nb::bytes const& data, std::string_view type, std::vector<std::int64_t> shape,
                                     nb::handle device, bool read_only);

// ---- dlpack.cpp: capsules, by the rules of the array API standard (__dlpack__, __dlpack_device__) ----

[[nodiscard]] std::pair<std::int32_t, std::int32_t> dlpack_device(tensor const& of);

// `stream` is None or what the standard says of it. Without `max_version` the capsule is of the kind that was before
// version 1.0, which cannot say that bytes are not to be written: BufferError for such.
[[nodiscard]] nb::object to_dlpack(tensor const& from, nb::object const& stream,
                                   std::optional<std::pair<int, int>> max_version,
                                   std::optional<std::pair<int, int>> device, std::optional<bool> copy);

}  // namespace gpurx::python
