// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads of a stream into host and device memory: async_read().
#pragma once

#include <algorithm>
#include <boost/asio/async_result.hpp>
#include <boost/asio/buffer.hpp>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>

#include <gpurx/detail/initiation.hpp>
#include <gpurx/detail/receiver_base.hpp>
#include <gpurx/error.hpp>
#include <gpurx/views.hpp>

namespace gpurx {

template <class Executor>
class basic_receiver;

namespace detail {

// As in Asio, a single buffer is a sequence too.
template <class T>
concept mutable_buffers = asio::is_mutable_buffer_sequence<T>::value;

template <class T>
concept destination_range = !std::is_array_v<T> && requires(T const& range)
{
    {
        *std::begin(range)
        } -> std::convertible_to<destination>;
    std::end(range);
};
template <class T>
concept destination_sequence = mutable_buffers<T> || destination_range<T>;

// An object or a range that the caller must wrap in a host_span.
template <class T>
concept bytes_to_wrap = !std::convertible_to<T&, destination> && !destination_sequence<T> &&
                        !asio::is_dynamic_buffer<T>::value && std::constructible_from<host_span, T&>;

// A type-erased reference to a destination or a sequence of them. Valid during the call that it is passed to.
class destinations_ref {
  public:
    template <class Sequence>
    explicit destinations_ref(Sequence const& sequence) noexcept : sequence_{&sequence}, visit_{visit<Sequence>}
    {}

    template <class Visitor>
    void for_each(Visitor visitor) const
    {
        visit_(sequence_, &visitor, [](void* to, destination const& one) { (*static_cast<Visitor*>(to))(one); });
    }

  private:
    using take = void (*)(void* visitor, destination const& one);

    template <class Sequence>
    static void visit(void const* erased, void* visitor, take call)
    {
        auto const& sequence = *static_cast<Sequence const*>(erased);
        if constexpr (std::same_as<Sequence, destination>) {
            call(visitor, sequence);
        } else if constexpr (mutable_buffers<Sequence>) {
            std::for_each(asio::buffer_sequence_begin(sequence), asio::buffer_sequence_end(sequence),
                          [&](asio::mutable_buffer const& one) { call(visitor, one); });
        } else {
            for (auto const& one : sequence)
                call(visitor, one);
        }
    }

    void const* sequence_;
    void (*visit_)(void const* sequence, void* visitor, take call);
};

// The condition that completes a read.
enum class read_until : bool { some, full };

// Compiled once, in flow/receive.cpp.
void start_read(std::shared_ptr<receiver_state> state, destinations_ref to, read_until enough, completion_site site,
                read_handler handler);

// `to`: a destination or a sequence. Tokens that begin the operation later keep a copy.
template <class Sequence, class Token>
auto initiate_read(std::shared_ptr<receiver_state> state, asio::any_io_executor const& executor, Sequence const& to,
                   read_until enough, Token&& token)
{
    return asio::async_initiate<Token, void(error_code, std::size_t)>(
        initiation{executor,
                   [](auto of, auto const& where, read_until until, auto site, auto&& handler) {
                       start_read(std::move(of.state), destinations_ref{where}, until, std::move(site),
                                  std::forward<decltype(handler)>(handler));
                   }},
        token, transfer_of<transfer::read>{std::move(state)}, to, enough);
}

// Members of a receiver for the library's free functions.
struct receiver_access {
    [[nodiscard]] static std::shared_ptr<receiver_state> const& state(receiver_base& of) { return of.state(); }
    [[nodiscard]] static asio::any_io_executor const& executor(receiver_base const& of) noexcept
    {
        return of.erased_executor();
    }
};

}  // namespace detail

/// @brief Reads exactly as many bytes of the stream as `to` holds.
///
/// The bytes are contiguous in the destination. Their pages return to the session.
///
/// async_read(), async_read_some() and async_receive() may follow each other in any order: no byte is lost between
/// them. Any session may read into any GPU's memory. A kernel gathers fragments on that GPU and in pinned host memory.
/// Copies gather other fragments.
///
/// In host memory the bytes are valid on completion. On a GPU, completion means that the copy is enqueued on the
/// destination's stream, in order. Work enqueued on that stream later sees the bytes. Other streams must wait for that
/// stream. If the destination has no stream, the operation uses CUDA's default stream (docs/gpu.md). Pages return when
/// the stream has passed.
///
/// While a read with transport `copy` waits for 128 KiB or more, `SO_RCVLOWAT` of the socket is the number of missing
/// bytes, at most 768 KiB. Fewer bytes do not make the socket readable, and stay in it also after a
/// cancellation. The end of the operation restores the program's value. A program must not set the option meanwhile.
/// Skipped bytes never wait in the socket.
///
/// The rules of operations in receiver.hpp hold.
///
/// @param from Receiver of the stream.
/// @param to Destination: a host_span, a memory_span, or an Asio buffer.
/// @param token Completion token with the signature `void(error_code, std::size_t bytes)`. On success `bytes` is the
///   size of `to`. On an error it is the number of bytes placed. These are consumed; all others are still in the
///   stream. A size of 0 completes with success.
///
/// @par Per-operation cancellation
/// Terminal and partial. Total only while the operation has placed no byte.
///
/// @par Errors
/// - `asio::error::eof`: the stream ends earlier.
/// - The errors of async_receive().
/// - `EINVAL`: the size of all destinations together exceeds `std::size_t`. Nothing has happened then.
/// - `EFAULT`, with transport `copy`: the host memory is not writable. The stream continues.
/// - errc::bad_destination, for device memory: the process cannot write to it.
/// - errc::wrong_gpu and errc::unusable_stream, for device memory. Nothing has happened then.
/// - The CUDA driver's errors, for device memory, in cuda_category(). The bytes not placed are still in the stream,
///   unless transport `copy` had taken them from the socket. In that case every later operation completes with the
///   error too.
///
/// @par Cost
/// - Per batch of the stream: one `recvmsg`, one copy of the bytes and one `setsockopt`.
/// - Onto a GPU with transport `devmem`: one kernel launch per `recvmsg`.
/// - Onto a GPU with transport `copy`: one copy across PCIe per 512 KiB, at most three at a time. A larger read
///   completes only as its stream advances, so that stream must not wait for the completion.
/// - With transport `copy`, if it waits for 128 KiB or more: one `getsockopt` and at least two `setsockopt` for
///   `SO_RCVLOWAT`, which save waits.
/// - Onto a GPU with any transport: at most about 400 commands of reads in a stream's queue. Beyond that the operation
///   waits for the stream without blocking a thread.
/// - From GPU memory to the host: the thread that runs the operation fetches the bytes. It waits for a kernel and for
///   the transfer across PCIe. Use it for headers.
template <class Executor,
          asio::completion_token_for<void(error_code, std::size_t)> Token = detail::default_token<Executor>>
auto async_read(basic_receiver<Executor>& from, destination to, Token&& token = Token())
{
    using access = detail::receiver_access;
    return detail::initiate_read(access::state(from), access::executor(from), to, detail::read_until::full,
                                 std::forward<Token>(token));
}

/// @brief Reads into device memory on `stream`; otherwise as above.
template <class Executor,
          asio::completion_token_for<void(error_code, std::size_t)> Token = detail::default_token<Executor>>
auto async_read(basic_receiver<Executor>& from, memory_span to, cuda_stream_ref stream, Token&& token = Token())
{
    return async_read(from, destination{to, stream}, std::forward<Token>(token));
}

/// @brief Reads into several destinations, in order, in one operation.
///
/// For example, read a header to the host and a body to a GPU:
///
/// @code{.cpp}
/// // In a coroutine, given rx, header, body, stream
/// using namespace gpurx;
/// co_await async_read(rx, std::array{destination{host_span{header}}, destination{body, stream}});
/// @endcode
/// destination::nowhere() skips bytes. With transport `copy` the kernel discards them; with `devmem` their pages
/// return. Otherwise the operation works as above. `bytes` counts over all destinations.
///
/// @tparam Destinations A MutableBufferSequence of Asio, or a range whose elements convert to destination.
/// @param from Receiver of the stream.
/// @param to Destinations. The operation copies the sequence, as Asio copies buffer sequences.
/// @param token Completion token with the signature `void(error_code, std::size_t bytes)`.
///
/// @par Lifetime
/// The elements behind a view such as `std::span` must stay valid until the operation has begun. The memory to fill
/// must stay valid until the operation has completed.
template <class Executor, detail::destination_sequence Destinations,
          asio::completion_token_for<void(error_code, std::size_t)> Token = detail::default_token<Executor>>
auto async_read(basic_receiver<Executor>& from, Destinations const& to, Token&& token = Token())
{
    using access = detail::receiver_access;
    return detail::initiate_read(access::state(from), access::executor(from), to, detail::read_until::full,
                                 std::forward<Token>(token));
}

/// @brief Deleted. Wrap an object or a range: `async_read(rx, host_span{header})`.
template <class Executor, detail::bytes_to_wrap Object, class... Rest>
void async_read(basic_receiver<Executor>& from, Object& to, Rest&&... rest) = delete;  // wrap it in host_span{to}

}  // namespace gpurx
