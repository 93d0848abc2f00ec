// SPDX-License-Identifier: Apache-2.0
//
// Non-owning views: a CUDA stream, bytes on a device, bytes on the host. No CUDA header is included or needed.
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

namespace detail {

// Throws std::out_of_range, whose text has all three numbers.
[[noreturn]] void throw_not_inside(std::size_t size, std::size_t offset, std::size_t count);

}  // namespace detail

// Contiguous bytes that a gather may write: a GPU's, or host memory that stands in for it. Non-owning.
//
// A part of it may have a size that a peer announces. Every build compares that with size(), with NDEBUG too:
//     // In a function, given tensor, header
//     auto const body = tensor.first(header.bytes);       // throws std::out_of_range
//     auto const other = tensor.try_first(header.bytes);  // empty
class memory_span {
  public:
    constexpr memory_span() noexcept = default;
    constexpr memory_span(memory_kind kind, std::uintptr_t address, std::size_t bytes) noexcept
        : address_{address}, size_{bytes}, kind_{kind}
    {}

    [[nodiscard]] constexpr std::uintptr_t address() const noexcept { return address_; }
    [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
    [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] constexpr memory_kind kind() const noexcept { return kind_; }

    // The first `count` bytes, or `count` bytes from `offset` on. Throws std::out_of_range if it has fewer.
    [[nodiscard]] constexpr memory_span first(std::size_t count) const { return subspan(0, count); }
    [[nodiscard]] constexpr memory_span subspan(std::size_t offset, std::size_t count) const
    {
        if (!has(offset, count))
            detail::throw_not_inside(size_, offset, count);
        return {kind_, address_ + offset, count};
    }
    // The same without an exception: empty if it has fewer.
    [[nodiscard]] constexpr std::optional<memory_span> try_first(std::size_t count) const noexcept
    {
        return try_subspan(0, count);
    }
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

// What an array, of arrays perhaps, is made of.
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

// Says where other bytes are, and holds none: a pointer, an iterator, a view, a buffer of Asio's.
template <class T>
inline constexpr bool names_other_bytes =
    std::is_member_pointer_v<T> || std::is_null_pointer_v<T> || dereferenceable<T> || has_data<T>;
template <class T>
inline constexpr bool names_other_bytes<std::reference_wrapper<T>> = true;
template <>
inline constexpr bool names_other_bytes<cuda_stream_ref> = true;
template <>
inline constexpr bool names_other_bytes<memory_span> = true;

// Its bytes may be written, and are what matters about it.
template <class T>
concept fillable = !std::is_const_v<typename innermost<T>::type> && !std::is_volatile_v<typename innermost<T>::type> &&
                   std::is_trivially_copyable_v<T> && !names_other_bytes<typename innermost<T>::type>;

// A span over the elements, where there can be one: not of a range that would die before it.
template <class Range>
using span_over = decltype(std::span(std::declval<Range>()));

template <class T>
concept spannable = requires
{
    typename span_over<T>;
};

}  // namespace detail

// Host bytes that async_read fills. Non-owning: what it was made from must stay. Made from
//   an Asio buffer: boost::asio::buffer(anything writable);
//   a contiguous range of trivially copyable elements: std::vector, std::array, std::span, std::string, a C array;
//   one trivially copyable object, such as the header of a message.
// What only says where other bytes are (std::string_view, const_buffer, memory_span, a pointer) is refused, and so are
// ranges of such: async_read would write over addresses.
class host_span {
  public:
    constexpr host_span() noexcept = default;
    constexpr host_span(std::byte* data, std::size_t bytes) noexcept : bytes_{data, bytes} {}

    host_span(boost::asio::mutable_buffer buffer) noexcept
        : host_span{static_cast<std::byte*>(buffer.data()), buffer.size()}
    {}

    template <detail::spannable Range>
    requires detail::fillable<typename detail::span_over<Range>::element_type>
    // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): a host_span is not spannable
    explicit host_span(Range&& range) noexcept : bytes_{std::as_writable_bytes(std::span(std::forward<Range>(range)))}
    {}

    template <detail::fillable T>
    requires(!detail::spannable<T&> && !std::same_as<T, host_span>) explicit host_span(T& object) noexcept
        : bytes_{std::as_writable_bytes(std::span<T, 1>{&object, 1})}
    {}

    [[nodiscard]] constexpr std::byte* data() const noexcept { return bytes_.data(); }
    [[nodiscard]] constexpr std::size_t size() const noexcept { return bytes_.size(); }
    [[nodiscard]] constexpr bool empty() const noexcept { return bytes_.empty(); }

  private:
    std::span<std::byte> bytes_;
};

// A place for bytes of a stream: on the host, or in device memory, where a CUDA stream says in which order. Non-owning.
class destination {
  public:
    constexpr destination() noexcept = default;
    destination(host_span to) noexcept
        : where_{memory_kind::host, reinterpret_cast<std::uintptr_t>(to.data()), to.size()}
    {}
    destination(boost::asio::mutable_buffer to) noexcept : destination{host_span{to}} {}
    constexpr destination(memory_span to, cuda_stream_ref stream = {}) noexcept : where_{to}, stream_{stream} {}
    // For bytes that nobody wants: they are consumed and copied nowhere.
    [[nodiscard]] static constexpr destination nowhere(std::size_t bytes) noexcept
    {
        destination result{memory_span{memory_kind::host, 0, bytes}};
        result.is_nowhere_ = true;
        return result;
    }

    // Host memory is of kind host, whichever view it was made from.
    [[nodiscard]] constexpr memory_span where() const noexcept { return where_; }
    [[nodiscard]] constexpr cuda_stream_ref stream() const noexcept { return stream_; }
    [[nodiscard]] constexpr std::size_t size() const noexcept { return where_.size(); }
    [[nodiscard]] constexpr bool is_nowhere() const noexcept { return is_nowhere_; }

  private:
    memory_span where_;
    cuda_stream_ref stream_;
    bool is_nowhere_ = false;
};

template <>
inline constexpr bool detail::names_other_bytes<destination> = true;

}  // namespace gpurx
