// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Error codes and diagnostics.
///
/// Functions that block (device_memory, rx_session, setup of an acceptor) throw a gpurx::system_error. Their overloads
/// with `error_code&, diagnostics&` set the same facts by value.
///
/// Asynchronous operations complete with an error_code alone. An error that the program ignores costs nothing. End of
/// stream is `boost::asio::error::eof`.
///
/// The operation's object keeps the diagnostics, in the handler and until its next failure: `receiver::why()`,
/// `acceptor::why()`. They tell the operation, its object, the kernel's own message and what to change. They are also
/// set by functions that take only an `error_code&`. Call `why()` on the object's strand:
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
/// `errno` values stay in `boost::system::system_category()`. Results of the CUDA driver are in cuda_category(). Errors
/// of gpurx itself are in gpurx_category(), as values of errc.
#pragma once

#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>
#include <string>

namespace boost::asio {}
namespace gpurx {

/// @brief Short name of Boost.Asio's namespace, in all headers of the library.
namespace asio = boost::asio;
/// @brief Short name of `boost::system::error_code`, in all headers of the library.
using boost::system::error_code;

/// @brief Errors of gpurx itself, each with the conclusion for the user.
enum class errc {
    /// @brief Another receive or read is pending on the receiver. Wait until it completes, or cancel it.
    already_running = 1,
    /// @brief The transport requested by name cannot work here. `diagnostics::advice` tells what is missing.
    transport_unavailable,
    /// @brief The library was built without CUDA, or no driver is installed. Use device_memory::on_host().
    no_cuda,
    /// @brief The memory is too small for `rx_session_options::max_flows` flows. Give more memory or allow fewer flows.
    memory_too_small,
    /// @brief The session already has `max_flows` flows. Close one, or raise `rx_session_options::max_flows`.
    too_many_flows,
    /// @brief Out-of-order data holds every page of the memory, and the missing segment has no page to land in.
    /// @details The flow could never continue and was ended (docs/memory-budget.md). Give more memory, or smaller
    /// receive buffers.
    memory_locked_up,
    /// @brief Data arrived in device memory that belongs to no session of this process. The flow is over.
    /// @details The flow was steered to a queue of another process. The bytes cannot be read here.
    foreign_memory,
    /// @brief The kernel can never deliver a segment with fragments in both device and host memory. The flow is over.
    /// @details The NIC driver is at fault.
    mixed_fragments,
    /// @brief Another user holds a queue that the session needs.
    queue_busy,
    /// @brief A journal file in the state directory is damaged, or of another program. Nothing was changed.
    journal_invalid,
    /// @brief A destination has a size that the operation cannot serve, or lies in memory that the transport cannot
    /// write.
    bad_destination,
    /// @brief The stream belongs to another GPU than the memory. Use a stream of the memory's GPU.
    wrong_gpu,
    /// @brief The stream is being captured into a CUDA graph, or is `CU_STREAM_PER_THREAD`. Use an ordinary stream.
    /// @details `CU_STREAM_PER_THREAD` names another stream in each thread that an operation runs on.
    unusable_stream,
    /// @brief An async_receive_exactly() asked for more bytes than one flow may have on loan. Nothing was consumed.
    /// @details With transport `devmem` whole pages count. Raise `rx_session_options::loan_limit`, receive in parts, or
    /// read the bytes into memory of your own.
    beyond_loan_limit,
};

/// @brief Returns the category of errc.
[[nodiscard]] boost::system::error_category const& gpurx_category() noexcept;
/// @brief Makes an error_code of gpurx_category().
[[nodiscard]] error_code make_error_code(errc value) noexcept;

/// @brief Returns the category of the CUDA driver's errors: values of `CUresult`, with the driver's own text.
[[nodiscard]] boost::system::error_category const& cuda_category() noexcept;

/// @brief Details of a failed operation. Each string may be empty.
struct diagnostics {
    std::string operation;  ///< Operation that failed, such as `bind-rx`.
    std::string object;     ///< Object of the operation, such as `eth1 queue 15`.

    /// @brief The kernel's extack text, verbatim. It is for people: branch on the error code.
    std::string kernel_message;
    std::string advice;  ///< Advice on what to change.

    /// @brief Empties all strings.
    void clear() noexcept;
    friend bool operator==(diagnostics const&, diagnostics const&) = default;
};

/// @brief Formats an error for people.
///
/// The text is `<operation> <object> (kernel: <kernel_message>): <text of code>; <advice>`, without the parts that are
/// empty.
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
    /// @brief Returns the text of describe(). It is valid as long as this object.
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
