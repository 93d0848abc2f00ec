// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory of a connection, for bytes on their way to a GPU. While one chunk crosses, the next is filled.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <memory>

#include <gpurx/error.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest::detail {

// Belongs to one strand. Destroyed at any time: the memory stays until the GPU has read it.
class pinned_chunks {
  public:
    explicit pinned_chunks(asio::any_io_executor const& executor);

    // Waits until the GPU has read the chunk that is next, and then returns it in `room`. Allocates it at its first
    // use. Errors: of the driver. Cancellation: the GPU still reads the chunk.
    [[nodiscard]] asio::awaitable<error_code> async_room(host_span& room);
    // Enqueues the copy of the first bytes of that chunk, of at least one, to all of `to` on a GPU.
    [[nodiscard]] error_code send(memory_span to, cuda_stream_ref stream);

  private:
    struct state;
    std::shared_ptr<state> state_;
};

}  // namespace gpurx::ingest::detail
