// SPDX-License-Identifier: Apache-2.0
//
// How the bytes of one flow move: the narrow interface between the receiver, which knows no transport, and the
// transports, which know no Asio. One file per transport.
#pragma once

#include <cstddef>
#include <memory>

#include <gpurx/error.hpp>
#include <gpurx/stream.hpp>

#include "loan.hpp"
#include "session_state.hpp"

namespace gpurx::detail {

class flow_transport {
  public:
    flow_transport() = default;
    flow_transport(flow_transport const&) = delete;
    flow_transport& operator=(flow_transport const&) = delete;
    virtual ~flow_transport() = default;

    // Takes at most `limit` bytes (> 0) from the socket without blocking and describes them in `into`, which is empty.
    // No error: into.bytes > 0. would_block: nothing there. no_buffer_space: no page is free until a loan returns.
    // eof, or another error: the stream has ended. Called by one thread at a time.
    [[nodiscard]] virtual error_code receive(std::size_t limit, loan& into) = 0;

    // Where the transport can write straight to `destination` (copy into host memory): the bytes placed, without a
    // loan.
    [[nodiscard]] virtual bool writes_in_place(memory_kind destination) const noexcept = 0;
    [[nodiscard]] virtual error_code receive_into(std::byte* destination, std::size_t size, std::size_t& placed) = 0;

    // Takes back what `from` holds. Any thread, any time. May only note it, until flush().
    virtual void give_back(loan& from) noexcept = 0;
    // True if give_back() has noted something that flush() would hand to the kernel.
    [[nodiscard]] virtual bool wants_flush() const noexcept = 0;
    virtual void flush() noexcept = 0;
};

[[nodiscard]] std::unique_ptr<flow_transport> make_devmem_transport(session_flow& flow, int socket);
[[nodiscard]] std::unique_ptr<flow_transport> make_copy_transport(session_flow& flow, int socket);

}  // namespace gpurx::detail
