// SPDX-License-Identifier: Apache-2.0
//
// The memory that tensors lie in, shared by all that look at it: Python's tensors, and what other
// libraries made of them.
#pragma once

#include <cstdint>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/ingest/buffer.hpp>
#include <gpurx/ingest/tensor_stream.hpp>
#include <memory>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "conversions.hpp"

namespace gpurx::python {

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

}  // namespace gpurx::python
