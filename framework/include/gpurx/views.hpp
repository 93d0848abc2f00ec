// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Non-owning views of CUDA streams, device bytes and host bytes.
///
/// The header needs no CUDA header.
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

/// @brief The CUDA driver's stream (cuda.h).
///
/// A `cudaStream_t` or `CUstream` points to it.
struct CUstream_st;

namespace gpurx {

/// @brief A non-owning reference to a CUDA stream, or to none.
///
/// Work on host memory needs no stream. For work on a GPU, an empty reference means CUDA's default stream, whose handle
/// is null too. Copies are cheap.
///
/// @par Lifetime
/// The stream must outlive every operation that uses it.
class cuda_stream_ref {
  public:
    /// @brief Names no stream.
    constexpr cuda_stream_ref() noexcept = default;
    /// @brief Names `stream`, a `cudaStream_t` or `CUstream`.
    constexpr cuda_stream_ref(CUstream_st* stream) noexcept : stream_{stream} {}
    /// @brief Deleted, so that 0 does not become a stream by accident.
    cuda_stream_ref(int) = delete;
    /// @brief Deleted. Write `cuda_stream_ref{}`.
    cuda_stream_ref(std::nullptr_t) = delete;

    /// @brief Returns the handle, or null.
    [[nodiscard]] constexpr CUstream_st* get() const noexcept { return stream_; }
    friend constexpr bool operator==(cuda_stream_ref, cuda_stream_ref) noexcept = default;

  private:
    CUstream_st* stream_ = nullptr;
};

/// @brief Kind of memory that holds bytes.
enum class memory_kind : std::uint8_t {
    host,    ///< Host memory. The CPU may access it.
    device,  ///< GPU memory. The CPU must not access it.
};

namespace detail {

// Throws std::out_of_range. Its text has all three numbers.
[[noreturn]] void throw_not_inside(std::size_t size, std::size_t offset, std::size_t count);

}  // namespace detail

/// @brief Contiguous, writable bytes of GPU memory or host memory. Non-owning.
///
/// gather() and reads write to it. A peer may announce the size of a part. first(), subspan() and their `try_` versions
/// compare it with size() in every build, with `NDEBUG` too:
/// @code{.cpp}
/// // In a function, given tensor, header
/// auto const body = tensor.first(header.bytes);       // throws std::out_of_range
/// auto const other = tensor.try_first(header.bytes);  // empty
/// @endcode
class memory_span {
  public:
    /// @brief Constructs an empty span of host memory.
    constexpr memory_span() noexcept = default;
    /// @brief Constructs a span of `bytes` bytes at `address`.
    constexpr memory_span(memory_kind kind, std::uintptr_t address, std::size_t bytes) noexcept
        : address_{address}, size_{bytes}, kind_{kind}
    {}

    /// @brief Returns the address of the first byte.
    [[nodiscard]] constexpr std::uintptr_t address() const noexcept { return address_; }
    /// @brief Returns the size in bytes.
    [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
    /// @brief Returns whether the size is 0.
    [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
    /// @brief Returns the kind of memory.
    [[nodiscard]] constexpr memory_kind kind() const noexcept { return kind_; }

    /// @brief Returns the first `count` bytes.
    /// @throws std::out_of_range If the span has fewer.
    [[nodiscard]] constexpr memory_span first(std::size_t count) const { return subspan(0, count); }
    /// @brief Returns `count` bytes from `offset` on.
    /// @throws std::out_of_range If the span has fewer.
    [[nodiscard]] constexpr memory_span subspan(std::size_t offset, std::size_t count) const
    {
        if (!has(offset, count))
            detail::throw_not_inside(size_, offset, count);
        return {kind_, address_ + offset, count};
    }
    /// @brief Returns the first `count` bytes; empty if the span has fewer.
    [[nodiscard]] constexpr std::optional<memory_span> try_first(std::size_t count) const noexcept
    {
        return try_subspan(0, count);
    }
    /// @brief Returns `count` bytes from `offset` on; empty if the span has fewer.
    [[nodiscard]] constexpr std::optional<memory_span> try_subspan(std::size_t offset, std::size_t count) const noexcept
    {
        if (!has(offset, count))
            return std::nullopt;
        return memory_span{kind_, address_ + offset, count};
    }
    friend constexpr bool operator==(memory_span, memory_span) noexcept = default;

  private:
    [[nodiscard]] constexpr bool has(std::size_t offset, std::size_t count) const noexcept
    {
        return offset <= size_ && count <= size_ - offset;
    }

    std::uintptr_t address_ = 0;
    std::size_t size_ = 0;
    memory_kind kind_ = memory_kind::host;
};

namespace detail {

// Type of the elements of an array, or of an array of arrays.
template <class T>
struct innermost {
    using type = T;
};
template <class T, std::size_t N>
struct innermost<T[N]> : innermost<T> {};
template <class T, std::size_t N>
struct innermost<std::array<T, N>> : innermost<T> {};

template <class T>
concept has_data = requires(T& object)
{
    object.data();
};

template <class T>
concept dereferenceable = requires(T& object)
{
    *object;
};

// Non-owning types: pointers, iterators, views, Asio buffers.
template <class T>
inline constexpr bool names_other_bytes =
    std::is_member_pointer_v<T> || std::is_null_pointer_v<T> || dereferenceable<T> || has_data<T>;
template <class T>
inline constexpr bool names_other_bytes<std::reference_wrapper<T>> = true;
template <>
inline constexpr bool names_other_bytes<cuda_stream_ref> = true;
template <>
inline constexpr bool names_other_bytes<memory_span> = true;

// Types whose value is their bytes, and whose bytes may be written.
template <class T>
concept fillable = !std::is_const_v<typename innermost<T>::type> && !std::is_volatile_v<typename innermost<T>::type> &&
                   std::is_trivially_copyable_v<T> && !names_other_bytes<typename innermost<T>::type>;

// Type of a span over the elements, if it exists. A range that ends before its span has none.
template <class Range>
using span_over = decltype(std::span(std::declval<Range>()));

template <class T>
concept spannable = requires
{
    typename span_over<T>;
};

}  // namespace detail

/// @brief Host bytes for async_read() to fill. Non-owning.
///
/// Non-owning objects, and ranges of them, cannot make a host_span: async_read() would overwrite addresses. Examples
/// are `std::string_view`, `const_buffer`, memory_span and a pointer.
///
/// @par Lifetime
/// The source of the span must live until the operation has completed.
class host_span {
  public:
    /// @brief Constructs an empty span.
    constexpr host_span() noexcept = default;
    /// @brief Constructs a span of `bytes` bytes at `data`.
    constexpr host_span(std::byte* data, std::size_t bytes) noexcept : bytes_{data, bytes} {}

    /// @brief Constructs a span of an Asio buffer: `boost::asio::buffer(anything writable)`.
    host_span(boost::asio::mutable_buffer buffer) noexcept
        : host_span{static_cast<std::byte*>(buffer.data()), buffer.size()}
    {}

    /// @brief Constructs a span of a contiguous range.
    /// @tparam Range A range of trivially copyable elements: `std::vector`, `std::array`, `std::span`, `std::string`, a
    ///   C array.
    template <detail::spannable Range>
    requires detail::fillable<typename detail::span_over<Range>::element_type>
    // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): a host_span is not spannable
    explicit host_span(Range&& range) noexcept : bytes_{std::as_writable_bytes(std::span(std::forward<Range>(range)))}
    {}

    /// @brief Constructs a span of one object, such as the header of a message.
    /// @tparam T A trivially copyable type that is not a range.
    template <detail::fillable T>
    requires(!detail::spannable<T&> && !std::same_as<T, host_span>) explicit host_span(T& object) noexcept
        : bytes_{std::as_writable_bytes(std::span<T, 1>{&object, 1})}
    {}

    /// @brief Returns the address of the first byte.
    [[nodiscard]] constexpr std::byte* data() const noexcept { return bytes_.data(); }
    /// @brief Returns the size in bytes.
    [[nodiscard]] constexpr std::size_t size() const noexcept { return bytes_.size(); }
    /// @brief Returns whether the size is 0.
    [[nodiscard]] constexpr bool empty() const noexcept { return bytes_.empty(); }

  private:
    std::span<std::byte> bytes_;
};

/// @brief A place for bytes of a stream, in host or device memory. Non-owning.
///
/// In device memory a CUDA stream orders the writes.
class destination {
  public:
    /// @brief Constructs a destination of 0 bytes.
    constexpr destination() noexcept = default;
    /// @brief Constructs a destination in host memory.
    destination(host_span to) noexcept
        : where_{memory_kind::host, reinterpret_cast<std::uintptr_t>(to.data()), to.size()}
    {}
    /// @brief Constructs a destination in an Asio buffer.
    destination(boost::asio::mutable_buffer to) noexcept : destination{host_span{to}} {}
    /// @brief Constructs a destination in `to`. `stream` orders the writes.
    constexpr destination(memory_span to, cuda_stream_ref stream = {}) noexcept : where_{to}, stream_{stream} {}
    /// @brief Returns a destination that skips `bytes` bytes.
    ///
    /// A read consumes the bytes and does not copy them.
    [[nodiscard]] static constexpr destination nowhere(std::size_t bytes) noexcept
    {
        destination result{memory_span{memory_kind::host, 0, bytes}};
        result.is_nowhere_ = true;
        return result;
    }

    /// @brief Returns the bytes to write. Host memory always has the kind `host`.
    [[nodiscard]] constexpr memory_span where() const noexcept { return where_; }
    /// @brief Returns the stream that orders the writes.
    [[nodiscard]] constexpr cuda_stream_ref stream() const noexcept { return stream_; }
    /// @brief Returns the size in bytes.
    [[nodiscard]] constexpr std::size_t size() const noexcept { return where_.size(); }
    /// @brief Returns whether reads skip the bytes, as with nowhere().
    [[nodiscard]] constexpr bool is_nowhere() const noexcept { return is_nowhere_; }

  private:
    memory_span where_;
    cuda_stream_ref stream_;
    bool is_nowhere_ = false;
};

template <>
inline constexpr bool detail::names_other_bytes<destination> = true;

}  // namespace gpurx
