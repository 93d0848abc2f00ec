// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Copies of scattered fragments into one contiguous range: gather().
///
/// Each function exists with and without CRC32C of the bytes.
///
/// If the destination is GPU memory (a memory_span of kind `device`), the functions enqueue the copy on the stream and
/// return at once. Keep the fragments on loan until the stream has passed (rx_buffer::release_after()). The copy is one
/// kernel launch per GiB.
///
/// The stream must belong to the destination's GPU. Without a stream the copy uses CUDA's default stream. Its context
/// is the caller's current context if that belongs to the GPU, otherwise the GPU's primary context. The stream waits
/// for bytes that a NIC wrote, and for unfinished copies of transport `copy`. No rx_buffer::acquire() is needed.
///
/// Fragments may have any size and alignment. One batch may have fragments in GPU memory and in host memory. The driver
/// copies fragments that the GPU cannot read, one by one. This is slower for memory of another GPU. For ordinary host
/// memory it may also wait for the stream.
///
/// If the destination is host memory, the bytes are valid on return. Fragments in GPU memory cross PCIe after the work
/// that was enqueued on the stream, and the calling thread waits for them. Use it for headers, not for payload.
///
/// @par Errors
/// - errc::bad_destination: the fragments do not fit, or the process cannot access the destination.
/// - errc::wrong_gpu: the stream belongs to another GPU.
/// - errc::unusable_stream: the stream is being captured.
/// - errc::no_cuda.
/// - The CUDA driver's errors, in cuda_category(). With all other errors the functions write nothing.
///
/// @par Thread safety
/// Threads may call the functions at the same time.
///
/// @par Cost
/// - On a GPU: one launch, one event, two driver queries for each memory with fragments, and some instructions per
///   fragment.
/// - On a GPU that cannot run kernels of this library: one driver call per fragment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <gpurx/crc32c.hpp>
#include <gpurx/error.hpp>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/views.hpp>

namespace gpurx {

/// @brief Copies fragments, in order, to the start of `destination`; sets `code`.
/// @param fragments Fragments to copy, on loan.
/// @param destination Bytes to write.
/// @param stream Stream of the copy (see gather.hpp).
/// @param code Set to the error, or cleared.
/// @returns The number of bytes placed.
std::size_t gather(std::span<fragment const> fragments, memory_span destination, cuda_stream_ref stream,
                   error_code& code) noexcept;
/// @brief Copies fragments, in order, to the start of `destination`.
/// @returns The number of bytes placed.
/// @throws system_error See Errors of gather.hpp.
std::size_t gather(std::span<fragment const> fragments, memory_span destination, cuda_stream_ref stream = {});

/// @brief Copies as gather() does, and computes the CRC32C (crc32c.hpp).
///
/// The CRC32C covers the bytes placed. On a GPU the fragments may have at most 4 GiB together, and the GPU must be able
/// to read all of them. Otherwise the error is errc::bad_destination.
///
/// @param fragments Fragments to copy, on loan.
/// @param destination Bytes to write.
/// @param crc Four bytes, aligned to four, that receive the CRC32C as a `std::uint32_t`. The GPU must be able to write
///   them: its own memory, or pinned host memory. With a destination in host memory they must be host memory. The value
///   is valid when the stream has passed.
/// @param stream Stream of the copy (see gather.hpp).
/// @param code Set to the error, or cleared.
/// @returns The number of bytes placed.
std::size_t gather_crc32c(std::span<fragment const> fragments, memory_span destination, memory_span crc,
                          cuda_stream_ref stream, error_code& code) noexcept;
/// @brief Throws instead of setting `code`; otherwise as the overload above.
/// @returns The number of bytes placed.
/// @throws system_error See Errors of gather.hpp.
std::size_t gather_crc32c(std::span<fragment const> fragments, memory_span destination, memory_span crc,
                          cuda_stream_ref stream = {});

/// @brief Computes the CRC32C of contiguous bytes. Does not change the bytes.
///
/// Otherwise the function works as gather_crc32c().
///
/// @param bytes Bytes to read.
/// @param crc Four bytes for the result, as for gather_crc32c().
/// @param stream Stream of the computation (see gather.hpp).
/// @param code Set to the error, or cleared.
void crc32c(memory_span bytes, memory_span crc, cuda_stream_ref stream, error_code& code) noexcept;
/// @brief Throws instead of setting `code`; otherwise as the overload above.
/// @throws system_error See Errors of gather.hpp.
void crc32c(memory_span bytes, memory_span crc, cuda_stream_ref stream = {});

}  // namespace gpurx
