// SPDX-License-Identifier: Apache-2.0
//
// The connections of a tensor_sender, one after the other.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gpurx/ingest/tensor_sender.hpp>

#include "../net/tcp.hpp"

namespace gpurx::ingest::detail {

// The end of a connection. Another connection may succeed, unless the end is final.
struct link_lost {
    error_code code;
    std::string why{};
    bool is_final = false;
};

// Coroutines throw link_lost, and boost::system::system_error with operation_aborted when they are cancelled.
class sender_link {
  public:
    using time_point = std::chrono::steady_clock::time_point;

    // Listens if the options request it. Throws system_error.
    sender_link(asio::any_io_executor const& executor, tensor_sender_options const& options);

    [[nodiscard]] std::optional<asio::ip::tcp::endpoint> local_endpoint() const;
    [[nodiscard]] bool is_open() const noexcept { return socket_.is_open(); }
    // Returns whether the receiver has closed an idle connection, on which only the end of the stream can arrive.
    [[nodiscard]] bool has_ended();

    // Connects, or accepts.
    asio::awaitable<void> open(time_point until);
    // Read, or write, all of the bytes.
    asio::awaitable<void> read(std::span<std::byte> to);
    asio::awaitable<void> write(std::span<std::byte const> from);
    // Read, or write, as many bytes as possible without waiting.
    [[nodiscard]] std::size_t read_some(std::span<std::byte> to);
    [[nodiscard]] std::size_t write_some(std::vector<asio::const_buffer> const& from);
    // Waits until bytes can be read, or written.
    asio::awaitable<void> wait(bool writes);
    void close() noexcept;

    // True after the receiver has responded. Until then it may have no room for this connection.
    bool is_greeted = false;

  private:
    template <class... Operations>
    asio::awaitable<error_code> in_time(Operations... operations);
    asio::awaitable<error_code> accept(time_point until);
    asio::awaitable<error_code> connect(time_point until);
    [[noreturn]] void lose(error_code code, std::string why = {}) const;

    asio::any_io_executor executor_;
    std::string host_;
    std::uint16_t port_ = 0;
    std::chrono::milliseconds timeout_;
    asio::ip::tcp::socket socket_;
    std::shared_ptr<connection_race> race_;  // while it connects
    asio::ip::tcp::acceptor acceptor_;
    asio::steady_timer end_;
};

}  // namespace gpurx::ingest::detail
