// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Error codes and diagnostics.
///
/// Functions that block (device_memory, rx_session, setup of an acceptor) throw a gpurx::system_error. Their overloads
/// with `error_code&, diagnostics&` return the same facts by value.
///
/// Asynchronous operations complete with an error_code only, so an ignored error costs nothing. The end of the stream
/// is `boost::asio::error::eof`.
///
/// The operation's object keeps the diagnostics: `receiver::why()`, `acceptor::why()`. They are valid in the handler
/// and until the next failure. They have the operation, its object, the kernel's own message and advice. Functions with
/// only an `error_code&` set them too. Call `why()` on the object's strand:
/// @code{.cpp}
/// // In a function, given rx, peer, log
/// rx.async_connect(peer, [&rx](gpurx::error_code code) {
///     if (code)
///         log(gpurx::describe(code, rx.why()));
/// });
/// @endcode
/// In a coroutine, without a token, a failed `co_await` throws a gpurx::system_error with the same text
/// (use_awaitable.hpp). Coroutines of gpurx::ingest throw it too.
///
/// Categories of errors:
/// - `boost::system::system_category()`: `errno` values.
/// - cuda_category(): results of the CUDA driver.
/// - gpurx_category(): errors of gpurx itself, as values of errc.
#pragma once

#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>
#include <string>

namespace boost::asio {}
namespace gpurx {

/// @brief Short name of Boost.Asio's namespace, for all headers of the library.
namespace asio = boost::asio;
/// @brief Short name of `boost::system::error_code`, for all headers of the library.
using boost::system::error_code;

/// @brief Errors of gpurx itself, each with advice.
enum class errc {
    /// @brief Another operation of this kind is pending on the object.
    /// @details A receiver serves one connect, receive or read at a time. Wait until the pending operation completes,
    /// or cancel it.
    already_running = 1,
    /// @brief The requested transport cannot work here.
    /// @details `diagnostics::advice` names the missing prerequisite.
    transport_unavailable,
    /// @brief The library was built without CUDA, or no driver is installed.
    /// @details Use device_memory::on_host().
    no_cuda,
    /// @brief The memory is too small for `rx_session_options::max_flows` flows.
    /// @details Allocate more memory, or allow fewer flows.
    memory_too_small,
    /// @brief The session already has `max_flows` flows.
    /// @details Close one, or raise `rx_session_options::max_flows`.
    too_many_flows,
    /// @brief Out-of-order data holds every page of the memory. The flow is over.
    /// @details The missing segment has no page to land in, so the flow could never continue, and the session ended it
    /// (docs/memory-budget.md). Allocate more memory, or use smaller receive buffers.
    memory_locked_up,
    /// @brief Data arrived in device memory of another process. The flow is over.
    /// @details The memory belongs to no session of this process: the flow was steered to a queue of another process.
    /// This process cannot read the bytes.
    foreign_memory,
    /// @brief A segment has fragments in device and in host memory. The flow is over.
    /// @details The kernel can never deliver such a segment. The NIC driver is at fault.
    mixed_fragments,
    /// @brief Another user holds a queue that the session needs.
    queue_busy,
    /// @brief A journal file is damaged, or of another program. Nothing was changed.
    /// @details The file is in `rx_session_options::state_directory`.
    journal_invalid,
    /// @brief The operation cannot serve a destination.
    /// @details Its size is too small or too large, or the transport cannot write its memory.
    bad_destination,
    /// @brief The stream belongs to another GPU than the memory.
    /// @details Use a stream of the memory's GPU.
    wrong_gpu,
    /// @brief The stream is being captured into a CUDA graph, or is `CU_STREAM_PER_THREAD`.
    /// @details `CU_STREAM_PER_THREAD` is another stream in each thread that an operation runs on. Use an ordinary
    /// stream.
    unusable_stream,
    /// @brief async_receive_exactly() exceeds the loan limit of a flow. Nothing was consumed.
    /// @details Whole pages count, except with transport `copy`. Raise `rx_session_options::loan_limit`, receive in
    /// parts, or read the bytes into the program's own memory.
    beyond_loan_limit,
};

/// @brief Returns the category of errc.
[[nodiscard]] boost::system::error_category const& gpurx_category() noexcept;
/// @brief Makes an error_code of gpurx_category().
[[nodiscard]] error_code make_error_code(errc value) noexcept;

/// @brief Returns the category of the CUDA driver's errors.
///
/// Its values are those of `CUresult`, with the driver's own text.
[[nodiscard]] boost::system::error_category const& cuda_category() noexcept;

/// @brief Details of a failed operation. Each string may be empty.
struct diagnostics {
    std::string operation;  ///< Operation that failed, such as `bind-rx`.
    std::string object;     ///< Object of the operation, such as `eth1 queue 15`.

    /// @brief The kernel's extack text, verbatim.
    ///
    /// It is for people: branch on the error code.
    std::string kernel_message;
    std::string advice;  ///< Advice on what to change.

    /// @brief Empties all strings.
    void clear() noexcept;
    friend bool operator==(diagnostics const&, diagnostics const&) = default;
};

/// @brief Formats an error for people.
///
/// The text is `<operation> <object> (kernel: <kernel_message>): <text of code>; <advice>`, without empty parts.
///
/// @param code Error to describe.
/// @param why Diagnostics of the error.
[[nodiscard]] std::string describe(error_code code, diagnostics const& why);

/// @brief Exception with an error_code and its diagnostics.
class system_error : public boost::system::system_error {
  public:
    /// @brief Constructs the exception and its text.
    system_error(error_code code, diagnostics why);

    /// @brief Returns the details of the failed operation.
    [[nodiscard]] diagnostics const& why() const noexcept { return why_; }
    /// @brief Returns the text of describe(), valid as long as this object.
    [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }

  private:
    diagnostics why_;
    std::string text_;
};

}  // namespace gpurx

/// @cond
template <>
struct boost::system::is_error_code_enum<gpurx::errc> : std::true_type {};
/// @endcond
