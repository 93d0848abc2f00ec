// SPDX-License-Identifier: Apache-2.0
//
// The interface of transports, which move the bytes of one flow. The receiver depends on no transport, and transports
// do not depend on Asio. One file per transport.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <gpurx/error.hpp>
#include <gpurx/views.hpp>

#include "cuda/gpu_work.hpp"
#include "loan.hpp"
#include "session/session_state.hpp"

namespace gpurx::detail {

// Fragments of a segment, at most.
inline constexpr std::size_t pieces_per_segment = 17;

struct landing {
    memory_kind kind = memory_kind::host;
    std::uintptr_t address = 0;
    std::size_t size = 0;
    gpu_stream on;                      // stream of the writes, if kind is device
    CUctx_st* memory_of = nullptr;      // gpu_place::context
    bool nowhere = false;               // skip the bytes; there is no address
    stream_backlog* backlog = nullptr;  // of `on`, if any

    [[nodiscard]] std::byte* on_host() const noexcept { return reinterpret_cast<std::byte*>(address); }
};

class flow_transport {
  public:
    flow_transport() = default;
    flow_transport(flow_transport const&) = delete;
    flow_transport& operator=(flow_transport const&) = delete;
    virtual ~flow_transport() = default;

    // ---- called by one thread at a time ----

    // Takes at most `limit` bytes (> 0) from the socket without blocking and describes them in `into`, which must be
    // empty. No error: into.bytes > 0. would_block: the socket has no bytes. no_buffer_space: no page is free until a
    // loan returns, or all staging memory is being copied to a GPU. eof or another error: the stream has ended. After
    // an error `into` may hold tokens or pages; the caller must give it back.
    [[nodiscard]] virtual error_code receive(std::size_t limit, loan& into) = 0;

    // Whether the transport can write directly to a destination, without a loan. If so, receive_into() takes at most
    // `size` bytes (> 0) from the socket. Its errors are those of receive().
    [[nodiscard]] virtual bool writes_in_place() const noexcept { return false; }
    [[nodiscard]] virtual error_code receive_into(landing const& /*destination*/, std::size_t /*size*/,
                                                  std::size_t& /*placed*/)
    {
        return make_error_code(boost::system::errc::operation_not_supported);
    }

    // Call it before a wait for the socket. Bytes for `destination` can wait in the socket until `missing` bytes have
    // come, or as many as are worth a call.
    virtual void expect(landing const& /*destination*/, std::size_t /*missing*/) noexcept {}
    // Call it when the operation ends that wrote in place. On an error, `lost` is the number of placed bytes that do
    // not reach their destination.
    [[nodiscard]] virtual error_code finish(std::size_t& /*lost*/) noexcept { return {}; }

    // After no_buffer_space: writes to the eventfd `event`, once, when the missing resource is available. Returns false
    // if it is available now.
    [[nodiscard]] virtual bool notify_of_pages(int /*event*/) { return false; }

    // After a receive that took bytes: whether it took all bytes of the socket. A guess: more may have arrived since.
    [[nodiscard]] bool drained() const noexcept { return drained_; }
    // After a receive on a drained socket found no bytes: the number of waits until the next such try. By default for a
    // receive without bytes that costs a third of a wait.
    [[nodiscard]] unsigned waits_between_tries() const noexcept { return waits_between_tries_; }

    // ---- called from any thread, at any time ----

    // Takes back the pages of `from`. Passes tokens to the kernel at once or, with `hold`, gathers them until flush(),
    // or until they fill a call.
    virtual void give_back(loan& from, bool hold) noexcept = 0;
    // Returns true if flush() has tokens to pass.
    [[nodiscard]] bool gathered() const noexcept { return gathered_.load(); }
    virtual void flush() noexcept {}

  protected:
    void set_drained(bool value) noexcept { drained_ = value; }
    void set_gathered(bool value) noexcept { gathered_.store(value); }
    void set_waits_between_tries(unsigned value) noexcept { waits_between_tries_ = value; }

  private:
    unsigned waits_between_tries_ = 16;
    bool drained_ = false;
    std::atomic<bool> gathered_{false};
};

// Of a recvmsg(MSG_SOCK_DEVMEM) that failed with this errno, as receive() returns it.
[[nodiscard]] error_code error_of_recvmsg(int error) noexcept;

// Flow and socket must outlive the transport.
[[nodiscard]] std::unique_ptr<flow_transport> make_devmem_transport(flow_place& place, int socket);
[[nodiscard]] std::unique_ptr<flow_transport> make_zcrx_transport(flow_place& place, int socket);
[[nodiscard]] std::unique_ptr<flow_transport> make_copy_transport(flow_place& place, int socket);

}  // namespace gpurx::detail
