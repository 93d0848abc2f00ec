// SPDX-License-Identifier: Apache-2.0
//
// A connection as it is: a flow of the session, whose bytes land where the session has them land.
#pragma once

#include <gpurx/receiver.hpp>

#include "wire.hpp"

namespace gpurx::ingest::detail {

class plain_wire final : public wire {
  public:
    plain_wire(asio::any_io_executor const& executor, rx_session& session) : receiver_{executor, session} {}

    [[nodiscard]] asio::awaitable<error_code> async_connect(std::vector<asio::ip::tcp::endpoint> const& to) override;
    [[nodiscard]] asio::awaitable<transferred> async_write(asio::const_buffer from) override;
    [[nodiscard]] asio::awaitable<transferred> async_read(memory_span to, cuda_stream_ref stream) override;
    [[nodiscard]] asio::awaitable<transferred> async_read_some(asio::mutable_buffer to) override;
    [[nodiscard]] asio::awaitable<transferred> async_skip(std::uint64_t bytes) override;
    [[nodiscard]] std::uint64_t arrived() const noexcept override;
    [[nodiscard]] bool at_hand() noexcept override;
    [[nodiscard]] bool is_quiet() override;
    void close() noexcept override;

  private:
    receiver receiver_;
};

}  // namespace gpurx::ingest::detail
