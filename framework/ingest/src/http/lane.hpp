// SPDX-License-Identifier: Apache-2.0
//
// A connection to an origin, and its requests in flight.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../net/http_connection.hpp"
#include "../net/message.hpp"
#include "origin.hpp"
#include "request.hpp"

namespace gpurx::ingest::detail {

// A request in flight.
struct pending_request {
    byte_range asked;               // empty: for all of the object
    byte_range answer;              // bytes still to come in its response, once the header was read
    std::deque<byte_range> wanted;  // wanted bytes that have not arrived yet
    bool answered = false;
    bool ahead = false;  // sent before the response to the previous request had arrived
    bool last = false;   // the server closes the connection after it
};

// Belongs to one strand.
class lane {
  public:
    // The referenced arguments must outlive it.
    lane(asio::any_io_executor executor, transfer_context& context) : executor_{std::move(executor)}, context_{&context}
    {}

    [[nodiscard]] asio::any_io_executor const& executor() const noexcept { return executor_; }

    // Returns the mirror of this connection, or of the next one; null if not known.
    [[nodiscard]] mirror* at() const noexcept { return at_.get(); }
    void serve(std::shared_ptr<mirror> whose, speed_check is_outrun)
    {
        at_ = std::move(whose);
        is_outrun_ = std::move(is_outrun);
    }
    void serve_none() noexcept { at_.reset(); }

    // Returns the connection; null if there is none.
    [[nodiscard]] std::shared_ptr<http_connection> const& on() const noexcept { return on_; }
    // Precondition of this and the next members: the mirror is known.
    [[nodiscard]] asio::awaitable<void> async_connect();
    // Opens the mirror's object: connects, follows redirects, and reads the header of the response to a request for the
    // first `size` bytes. That request is then in flight.
    [[nodiscard]] asio::awaitable<opened_object> async_open(std::uint64_t size);
    // Requests stay: their bytes are still to be fetched.
    void disconnect() noexcept
    {
        on_.reset();
        kept_ = false;
    }
    // Returns whether the connection was kept and has received nothing since. The server may have closed it.
    [[nodiscard]] bool is_stale() const noexcept { return kept_; }
    // Keeps the connection until wake(), which closes it if the server has done so.
    void rest() noexcept;
    void wake();
    // Closes the connection and forgets its requests.
    void drop() noexcept
    {
        disconnect();
        requests.clear();
    }

    // Returns whether another request may be sent before the pending responses arrive.
    [[nodiscard]] bool has_room() const noexcept
    {
        return requests.size() < at_->from.pipelined() && asked_ < at_->from.per_connection;
    }
    [[nodiscard]] asio::awaitable<void> async_ask(pending_request what);
    // Reads the header of the next response, with the range of its bytes. Throws if the response does not match its
    // request.
    [[nodiscard]] asio::awaitable<void> async_read_header(pending_request& what);
    // Counts a complete response.
    void learn(answer const& head) noexcept;
    // Returns bytes per second of a response of this size that has just arrived.
    [[nodiscard]] double speed_of(std::uint64_t bytes);

    // Pending requests, in order.
    std::deque<pending_request> requests;
    std::uint64_t brought = 0;       // bytes
    cuda_stream_ref stream;          // of the running fetch, for bytes on a GPU
    std::vector<std::byte> landing;  // for pieces that are consumed from host memory

  private:
    // Empty: the next attempt must use another request, or another server.
    [[nodiscard]] asio::awaitable<std::optional<opened_object>> attempt(std::uint64_t size);
    // Returns whether the response leads to another place, or would do so for a request without a range.
    [[nodiscard]] bool is_elsewhere(answer const& head);
    [[nodiscard]] bool is_refused_range(answer const& head);
    // Throws the server's error.
    [[nodiscard]] asio::awaitable<void> refuse(answer head);
    [[nodiscard]] asio::awaitable<answer> answer_to(pending_request const& what);
    // Returns the answer to the first GET; empty if a HEAD precedes it on the connection, and the server answers the
    // HEAD only, or answers it with a body.
    [[nodiscard]] asio::awaitable<std::optional<answer>> answer_to_first(bool is_behind_head);
    // Returns the number of looks that a pipelined request's answer may take.
    [[nodiscard]] unsigned looks_for_next() const;

    asio::any_io_executor executor_;
    transfer_context* context_;
    std::shared_ptr<mirror> at_;
    speed_check is_outrun_;
    std::shared_ptr<http_connection> on_;
    std::uint64_t asked_ = 0;     // requests, on this connection
    std::uint64_t answered_ = 0;  // of these
    bool kept_ = false;
    std::chrono::steady_clock::time_point since_;  // earliest time of the next response
};

}  // namespace gpurx::ingest::detail
