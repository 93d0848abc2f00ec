// SPDX-License-Identifier: Apache-2.0
//
// gather: scattered fragments into one contiguous range.
#pragma once

#include <cstddef>
#include <span>

#include <gpurx/error.hpp>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/stream.hpp>

namespace gpurx {

// Copies the fragments, in order, to the start of `destination`. On a GPU the copy is enqueued on `stream` and this
// returns at once: keep the fragments on loan until the stream has passed (rx_buffer::release_after). In host memory
// the bytes are there on return. Returns the bytes placed. Errors: errc::bad_destination if the fragments do not fit,
// or if `destination` is a GPU's (in this version); nothing is written then.
std::size_t gather(std::span<fragment const> fragments, device_span destination, cuda_stream_ref stream,
                   error_code& code) noexcept;
std::size_t gather(std::span<fragment const> fragments, device_span destination, cuda_stream_ref stream = {});

}  // namespace gpurx
