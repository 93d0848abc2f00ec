// SPDX-License-Identifier: Apache-2.0
//
// gather: scattered fragments into one contiguous range.
//
// Where the destination is a GPU's (memory_span of kind device), the copy is enqueued on `stream`, as one kernel launch
// per GiB, and the functions return at once: keep the fragments on loan until the stream has passed
// (rx_buffer::release_after). The stream must be one of the destination's GPU; without one it is CUDA's default stream,
// of the caller's current context if that is the GPU's, else of its primary context. What a NIC wrote, and what
// transport copy has on its way, is waited for in the stream: no rx_buffer::acquire is needed. Fragments may be of any
// size and alignment, in memory of the GPU and on the host, in one batch; those that the GPU cannot read are copied by
// the driver one by one: slower (another GPU's), and it may wait for the stream (ordinary host memory). In host memory
// the bytes are there on return; fragments in a GPU's memory are brought across PCIe once what was enqueued on
// `stream` has run, and the calling thread waits for that: for headers, not for payload.
//
// Errors: errc::bad_destination if the fragments do not fit, or if `destination` can be reached by nobody here;
// errc::wrong_gpu if the stream is one of another GPU; errc::unusable_stream if it is being captured; errc::no_cuda;
// what the CUDA driver reports, in cuda_category(). All but the last write nothing.
//
// Thread safety: may be called at the same time.
//
// Cost: on a GPU one launch, one event and, per memory that fragments lie in, two questions to the driver; some
// instructions for each fragment. Where the GPU cannot be reached by kernels of this library, a call per fragment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <gpurx/crc32c.hpp>
#include <gpurx/error.hpp>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/views.hpp>

namespace gpurx {

// Copies the fragments, in order, to the start of `destination`. Returns the bytes placed.
std::size_t gather(std::span<fragment const> fragments, memory_span destination, cuda_stream_ref stream,
                   error_code& code) noexcept;
std::size_t gather(std::span<fragment const> fragments, memory_span destination, cuda_stream_ref stream = {});

// The same, and computes the CRC32C (crc32c.hpp) of the bytes placed: written as a
// std::uint32_t to the four bytes of `crc`, aligned to four, which the GPU must be able to write (its memory, or pinned
// host memory; host memory where the destination is). It is there when the stream has passed. On a GPU at most 4 GiB at
// a time, and all fragments within the GPU's reach: else errc::bad_destination.
std::size_t gather_crc32c(std::span<fragment const> fragments, memory_span destination, memory_span crc,
                          cuda_stream_ref stream, error_code& code) noexcept;
std::size_t gather_crc32c(std::span<fragment const> fragments, memory_span destination, memory_span crc,
                          cuda_stream_ref stream = {});

// The CRC32C alone, of bytes that lie contiguous already; they are read, not written. As gather_crc32c otherwise.
void crc32c(memory_span bytes, memory_span crc, cuda_stream_ref stream, error_code& code) noexcept;
void crc32c(memory_span bytes, memory_span crc, cuda_stream_ref stream = {});

}  // namespace gpurx
