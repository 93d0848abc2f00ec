// SPDX-License-Identifier: Apache-2.0
//
// Errors.
//
// Functions that block (device_memory, rx_session, setting up an acceptor): exceptions of type gpurx::system_error, or,
// for the overloads that take `error_code&, diagnostics&`, the same facts by value.
//
// Asynchronous operations complete with a bare error_code: an error that nobody looks at costs nothing. End of stream
// is boost::asio::error::eof. The object that the operation belongs to knows the rest, in the handler and until its
// next failure: which operation, on what, the kernel's own words, what to change. It is asked the same way everywhere,
// also after a function that took only an `error_code&`, on the object's strand:
//     // In a function, given rx, peer, log
//     rx.async_connect(peer, [&rx](gpurx::error_code code) {
//         if (code)
//             log(gpurx::describe(code, rx.why()));
//     });
// receiver::why() and acceptor::why(). In a coroutine, without a token, a failed co_await throws a system_error that
// says the same (use_awaitable.hpp), as do coroutines of gpurx::ingest.
//
// errno values stay in boost::system::system_category(), answers of the CUDA driver in cuda_category(); what gpurx
// itself decides is an errc below.
#pragma once

#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>
#include <string>

// The one place where the library's short names for its two foundations are made.
namespace boost::asio {}
namespace gpurx {

namespace asio = boost::asio;
using boost::system::error_code;

// What gpurx decides by itself. Each value says what a user should conclude.
enum class errc {
    // A receiver serves one async_receive or async_read at a time. Wait for the first to complete, or cancel it.
    already_running = 1,
    // The transport that was asked for by name cannot work here; diagnostics::advice says what is missing.
    transport_unavailable,
    // The library was built without CUDA, or no driver is installed. Use device_memory::on_host.
    no_cuda,
    // The memory is too small for rx_session_options::max_flows flows. Give more memory or allow fewer flows.
    memory_too_small,
    // The session already has max_flows flows. Close one, or raise rx_session_options::max_flows.
    too_many_flows,
    // Every page of the memory is held by out-of-order data and the missing segment has no page to land in: the flow
    // could never go on and was ended (docs/memory-budget.md). Give more memory, or smaller receive buffers.
    memory_locked_up,
    // Data arrived in device memory that belongs to no session of this process (the flow was steered to a queue of
    // another process). The bytes cannot be read here. The flow is over.
    foreign_memory,
    // The kernel cannot deliver a segment whose fragments lie partly in device memory and partly in host memory, and
    // never will: a fault of the NIC driver. The flow is over.
    mixed_fragments,
    // A queue that the session needs is in use by somebody else.
    queue_busy,
    // A journal file in the state directory is not one of ours, or is damaged. Nothing was changed.
    journal_invalid,
    // A destination is smaller or larger than the operation can serve, or lies in memory the transport cannot write.
    bad_destination,
    // The stream belongs to another GPU than the memory. Use a stream of the memory's GPU.
    wrong_gpu,
    // The stream is being captured into a CUDA graph, or is CU_STREAM_PER_THREAD, which names another stream in each
    // thread
    // that an operation runs on. Use an ordinary stream.
    unusable_stream,
    // An async_receive_exactly of more bytes than one flow may have on loan; with devmem whole pages count. Nothing was
    // consumed. Raise rx_session_options::loan_limit, receive in parts, or read the bytes into a place of your own.
    beyond_loan_limit,
};

[[nodiscard]] boost::system::error_category const& gpurx_category() noexcept;
[[nodiscard]] error_code make_error_code(errc value) noexcept;

// What the CUDA driver reports: values of CUresult, with the driver's own text.
[[nodiscard]] boost::system::error_category const& cuda_category() noexcept;

// What was being done when an error came up. All strings may be empty.
struct diagnostics {
    std::string operation;       // "bind-rx"
    std::string object;          // "eth1 queue 15"
    std::string kernel_message;  // the kernel's extack text, verbatim. For people: branch on the error code
    std::string advice;          // what to change

    void clear() noexcept;
    friend bool operator==(diagnostics const&, diagnostics const&) = default;
};

// `<operation> <object> (kernel: <kernel_message>): <text of code>; <advice>`, leaving out what is empty.
[[nodiscard]] std::string describe(error_code code, diagnostics const& why);

class system_error : public boost::system::system_error {
  public:
    system_error(error_code code, diagnostics why);

    [[nodiscard]] diagnostics const& why() const noexcept { return why_; }
    // The text of describe(); valid as long as this object.
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
