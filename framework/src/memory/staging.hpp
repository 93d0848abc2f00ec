// SPDX-License-Identifier: Apache-2.0
//
// Pinned host memory that one flow receives into on the way to a GPU: while one chunk crosses PCIe,
// recv fills the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <gpurx/error.hpp>

#include "cuda/gpu_work.hpp"

namespace gpurx::detail {

// One thread at a time.
class staging {
  public:
    staging(staging const&) = delete;
    staging& operator=(staging const&) = delete;
    // What is under way still arrives.
    virtual ~staging() = default;

    // Bytes that recv may write now and that copy() will send along `on`; empty: all chunks are under way.
    [[nodiscard]] virtual std::span<std::byte> room(gpu_stream on, error_code& code) = 0;
    // Enqueues the copy of the next `size` bytes of room() to `address` on the GPU. Does not wait.
    [[nodiscard]] virtual error_code copy(std::uintptr_t address, std::size_t size) noexcept = 0;
    // Writes to the eventfd `event`, once, when there is room. False: there is room now.
    [[nodiscard]] virtual bool notify(int event) noexcept = 0;

  protected:
    staging() = default;
};

// The stream that fills the memory of session GPUs, in the order of the calls of all flows.
[[nodiscard]] gpu_stream copy_stream_of(int ordinal, error_code& code) noexcept;

// Null with an error.
[[nodiscard]] std::unique_ptr<staging> make_staging(int ordinal, error_code& code) noexcept;

}  // namespace gpurx::detail
