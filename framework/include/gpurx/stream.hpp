// SPDX-License-Identifier: Apache-2.0
//
// Non-owning views: a CUDA stream, bytes on a device, bytes on the host. No CUDA header is included or needed.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

// What a cudaStream_t / CUstream points to (CUDA driver API, cuda.h).
struct CUstream_st;

namespace gpurx {

// A CUDA stream that somebody else owns, or "none": work on host memory needs no stream, and where a GPU is involved
// "none" is CUDA's default stream, whose handle is null too. Cheap to copy.
// Lifetime: the stream must outlive every operation that it was given to.
class cuda_stream_ref {
  public:
    constexpr cuda_stream_ref() noexcept = default;
    constexpr cuda_stream_ref(CUstream_st* stream) noexcept : stream_{stream} {}
    cuda_stream_ref(int) = delete;             // 0 must not become a stream by accident
    cuda_stream_ref(std::nullptr_t) = delete;  // say cuda_stream_ref{}

    [[nodiscard]] constexpr CUstream_st* get() const noexcept { return stream_; }
    friend constexpr bool operator==(cuda_stream_ref, cuda_stream_ref) noexcept = default;

  private:
    CUstream_st* stream_ = nullptr;
};

// Where bytes live.
enum class memory_kind : std::uint8_t {
    host,    // addressable by the CPU
    device,  // a GPU's memory: the CPU must not touch the address
};

// Contiguous bytes that a gather may write: a GPU's, or host memory that stands in for it. Non-owning.
class device_span {
  public:
    constexpr device_span() noexcept = default;
    constexpr device_span(memory_kind kind, std::uintptr_t address, std::size_t bytes) noexcept
        : address_{address}, size_{bytes}, kind_{kind}
    {}

    [[nodiscard]] constexpr std::uintptr_t address() const noexcept { return address_; }
    [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
    [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] constexpr memory_kind kind() const noexcept { return kind_; }

    // Precondition: count <= size() / offset + count <= size().
    [[nodiscard]] constexpr device_span first(std::size_t count) const noexcept { return subspan(0, count); }
    [[nodiscard]] constexpr device_span subspan(std::size_t offset, std::size_t count) const noexcept
    {
        assert(offset <= size_ && count <= size_ - offset);
        return {kind_, address_ + offset, count};
    }
    friend constexpr bool operator==(device_span, device_span) noexcept = default;

  private:
    std::uintptr_t address_ = 0;
    std::size_t size_ = 0;
    memory_kind kind_ = memory_kind::host;
};

// Host bytes that async_read fills. Made from any writable trivially copyable object or contiguous range of such.
class host_span {
  public:
    constexpr host_span() noexcept = default;
    constexpr host_span(std::byte* data, std::size_t bytes) noexcept : bytes_{data, bytes} {}

    template <class T, std::size_t Extent>
    requires(!std::is_const_v<T> &&
             std::is_trivially_copyable_v<T>) explicit host_span(std::span<T, Extent> range) noexcept
        : bytes_{std::as_writable_bytes(range)}
    {}

    template <class T>
    requires(!std::is_const_v<T> && std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
             !std::is_same_v<T, host_span>) explicit host_span(T& object) noexcept
        : host_span(std::span<T, 1>{&object, 1})
    {}

    [[nodiscard]] constexpr std::byte* data() const noexcept { return bytes_.data(); }
    [[nodiscard]] constexpr std::size_t size() const noexcept { return bytes_.size(); }

  private:
    std::span<std::byte> bytes_;
};

}  // namespace gpurx
