// SPDX-License-Identifier: Apache-2.0
//
// The state of a tensor_sender: frames that it keeps, and the receiver's progress.
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gpurx/ingest/tensor_sender.hpp>

#include "frame.hpp"
#include "hello.hpp"
#include "sender_link.hpp"

namespace gpurx::ingest::detail {

// A frame, kept from the send operation until its acknowledgement.
struct kept_frame {
    frame_head head{};
    std::string refusal{};                              // reason why it cannot be sent
    std::vector<std::span<std::byte const>> payload{};  // tensor after tensor
    std::shared_ptr<void const> owner{};                // owner of these bytes
    std::vector<std::byte> encoded{};                   // the head, set when the frame is kept
    std::uint64_t size = 0;                             // of head and payload, set then too
};

class sender_state : public std::enable_shared_from_this<sender_state> {
  public:
    sender_state(asio::any_io_executor executor, tensor_sender_options options);

    [[nodiscard]] asio::any_io_executor const& executor() const noexcept { return executor_; }
    [[nodiscard]] sender_link const& link() const noexcept { return link_; }
    [[nodiscard]] std::uint64_t next_frame() const noexcept { return next_; }
    [[nodiscard]] std::uint64_t received() const noexcept { return received_; }
    [[nodiscard]] std::uint64_t acknowledged() noexcept;
    [[nodiscard]] tensor_sender_stats const& stats() const noexcept { return stats_; }
    [[nodiscard]] diagnostics const& why() const noexcept { return why_; }

    // Takes the turn, which one operation has at a time. Returns false if another operation has it.
    [[nodiscard]] bool take_turn() noexcept { return !std::exchange(is_busy_, true); }
    void end_turn() noexcept { is_busy_ = false; }
    // Performs the operation that has the turn, and ends the turn.
    asio::awaitable<error_code> serve(sending what, std::shared_ptr<kept_frame> frame);
    [[nodiscard]] asio::cancellation_slot slot() noexcept { return cancelled_.slot(); }
    void cancel(asio::cancellation_type type) noexcept;
    void abort() noexcept;
    error_code note(error_code code, diagnostics why);

  private:
    using clock = std::chrono::steady_clock;

    asio::awaitable<void> perform(sending what, std::shared_ptr<kept_frame> frame);
    void check_open(sending what) const;
    void check(kept_frame& frame) const;
    asio::awaitable<void> wait_for_receiver();
    asio::awaitable<void> put(std::shared_ptr<kept_frame> frame);
    void keep(std::shared_ptr<kept_frame> frame);
    asio::awaitable<void> say_goodbye();
    // Writes and reads until `done`, with as many connections as necessary.
    template <class Done>
    asio::awaitable<void> until(Done done);
    template <class Done>
    asio::awaitable<void> go_on(Done done, clock::time_point give_up_at);
    asio::awaitable<void> pause(clock::duration time);
    asio::awaitable<void> greet();
    asio::awaitable<welcome> ask_for_welcome(hello const& said);
    void follow(welcome const& answer);
    [[nodiscard]] bool has_to_write() const noexcept { return received_ < next_; }
    // Return whether any byte was read, or written.
    bool read_acknowledgements();
    bool write_frames();
    void forget(std::uint64_t count) noexcept;
    void drop_connection() noexcept;
    // Ends the sender.
    [[nodiscard]] system_error ended(error_code code, std::string advice);
    [[nodiscard]] system_error described(error_code code, std::string advice) const;
    [[nodiscard]] std::string where() const;

    asio::any_io_executor executor_;
    tensor_sender_options options_;
    std::uint32_t sender_;
    sender_link link_;
    asio::steady_timer pause_;
    asio::cancellation_signal cancelled_;

    bool is_busy_ = false;
    bool has_kept_ = false;  // the frame of the operation that has the turn
    bool has_connected_ = false;
    bool last_is_kept_ = false;
    bool is_closed_ = false;
    std::optional<system_error> ended_;

    std::vector<tensor_spec> tensors_;                // of the first frame with tensors
    std::deque<std::shared_ptr<kept_frame>> kept_{};  // the last of them is frame next_ - 1
    std::uint64_t kept_size_ = 0;
    std::uint64_t next_ = 0;
    std::uint64_t acknowledged_ = 0;
    std::uint64_t received_ = 0;  // the receiver has the frames before it, or this connection has them
    std::uint64_t written_ = 0;   // bytes of frame received_
    std::array<std::byte, 4096> incoming_{};
    std::size_t incoming_size_ = 0;  // of an incomplete acknowledgement
    tensor_sender_stats stats_{};
    diagnostics why_{};
};

}  // namespace gpurx::ingest::detail
