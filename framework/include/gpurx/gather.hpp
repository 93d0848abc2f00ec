// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Gathers of scattered fragments into one contiguous range, with or without CRC32C.
///
/// If the destination is GPU memory (a memory_span of kind `device`), the functions enqueue the copy on the stream and
/// return at once. Keep the fragments on loan until the stream has passed (rx_buffer::release_after()). The copy is one
/// kernel launch per GiB.
///
/// The stream must belong to the destination's GPU. Without a stream the copy uses CUDA's default stream: that of the
/// caller's current context if the context is the GPU's, otherwise that of its primary context. The stream waits for
/// bytes that a NIC wrote, and for bytes that transport `copy` has on their way. No rx_buffer::acquire() is needed.
///
/// Fragments may have any size and alignment. One batch may lie in GPU memory and in host memory. The driver copies
/// fragments that the GPU cannot read, one by one. This is slower for memory of another GPU. For ordinary host memory
/// it may also wait for the stream.
///
/// If the destination is host memory, the bytes are there on return. Fragments in GPU memory cross PCIe after the work
/// that was enqueued on the stream, and the calling thread waits for that. Use it for headers, not for payload.
///
/// @par Errors
/// - errc::bad_destination: the fragments do not fit, or the process cannot reach the destination.
/// - errc::wrong_gpu: the stream belongs to another GPU.
/// - errc::unusable_stream: the stream is being captured.
/// - errc::no_cuda.
/// - The CUDA driver's errors, in cuda_category(). All other errors write nothing.
///
/// @par Thread safety
/// The functions may be called at the same time.
///
/// @par Cost
/// On a GPU: one launch, one event, two driver queries per memory that holds fragments, and some instructions per
/// fragment. If kernels of this library cannot reach the GPU: a call per fragment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <gpurx/crc32c.hpp>
#include <gpurx/error.hpp>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/views.hpp>

namespace gpurx {

/// @brief Copies the fragments, in order, to the start of `destination`, and sets `code`.
/// @param fragments Fragments to copy, on loan.
/// @param destination Bytes to write.
/// @param stream Stream of the copy (see gather.hpp).
/// @param code Set to the error, or cleared.
/// @returns The number of bytes placed.
std::size_t gather(std::span<fragment const> fragments, memory_span destination, cuda_stream_ref stream,
                   error_code& code) noexcept;
/// @brief Copies the fragments, in order, to the start of `destination`.
/// @returns The number of bytes placed.
/// @throws system_error See Errors of gather.hpp.
std::size_t gather(std::span<fragment const> fragments, memory_span destination, cuda_stream_ref stream = {});

/// @brief Gathers as gather() does, and computes the CRC32C of the bytes placed (crc32c.hpp).
///
/// On a GPU the fragments may have at most 4 GiB together, and all must be within the GPU's reach. Otherwise the error
/// is errc::bad_destination.
///
/// @param fragments Fragments to copy, on loan.
/// @param destination Bytes to write.
/// @param crc Four bytes, aligned to four, that receive the CRC32C as a `std::uint32_t`. The GPU must be able to write
///   them: its own memory, or pinned host memory. With a destination in host memory they are host memory. The value is
///   there when the stream has passed.
/// @param stream Stream of the copy (see gather.hpp).
/// @param code Set to the error, or cleared.
/// @returns The number of bytes placed.
std::size_t gather_crc32c(std::span<fragment const> fragments, memory_span destination, memory_span crc,
                          cuda_stream_ref stream, error_code& code) noexcept;
/// @brief Gathers and computes the CRC32C as above.
/// @returns The number of bytes placed.
/// @throws system_error See Errors of gather.hpp.
std::size_t gather_crc32c(std::span<fragment const> fragments, memory_span destination, memory_span crc,
                          cuda_stream_ref stream = {});

/// @brief Computes the CRC32C of contiguous bytes, which it reads and does not write.
///
/// Otherwise the function works as gather_crc32c().
///
/// @param bytes Bytes to read.
/// @param crc Four bytes for the result, as for gather_crc32c().
/// @param stream Stream of the computation (see gather.hpp).
/// @param code Set to the error, or cleared.
void crc32c(memory_span bytes, memory_span crc, cuda_stream_ref stream, error_code& code) noexcept;
/// @brief Computes the CRC32C of contiguous bytes as above.
/// @throws system_error See Errors of gather.hpp.
void crc32c(memory_span bytes, memory_span crc, cuda_stream_ref stream = {});

}  // namespace gpurx
