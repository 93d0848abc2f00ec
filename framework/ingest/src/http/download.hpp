// SPDX-License-Identifier: Apache-2.0
//
// What an http_object does: opens the object with a first request, and fetches the rest through several connections at
// once, each a lane.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <gpurx/ingest/http.hpp>

#include "crc_parts.hpp"
#include "fetch_plan.hpp"
#include "http_connection.hpp"
#include "request.hpp"

namespace gpurx::ingest::detail {

class download {
  public:
    download(asio::any_io_executor executor, rx_session& session, std::string_view text, http_options options);

    [[nodiscard]] asio::awaitable<void> async_open();
    [[nodiscard]] asio::awaitable<void> async_read_front(host_span destination);
    [[nodiscard]] asio::awaitable<void> async_fetch(std::span<placement const> placements);

    [[nodiscard]] url const& from() const noexcept { return from_; }
    [[nodiscard]] object_identity const& object() const noexcept { return object_; }
    [[nodiscard]] bool serves_ranges() const noexcept { return serves_ranges_; }
    [[nodiscard]] std::uint64_t front() const noexcept { return front_; }
    [[nodiscard]] std::optional<std::uint32_t> announced_crc32c() const noexcept { return announced_crc_; }
    [[nodiscard]] std::optional<std::uint32_t> computed_crc32c() const noexcept { return computed_crc_; }
    [[nodiscard]] http_stats stats() const noexcept;

  private:
    // A request under way.
    struct request {
        byte_range asked;                // empty: for all of the object
        byte_range answer;               // that its answer still brings, once the header has been read
        std::vector<byte_range> wanted;  // of these, what has not come yet
        bool answered = false;
        bool last = false;  // the server closes the connection behind it
    };
    // A connection and what is under way on it. Belongs to one strand.
    struct lane {
        asio::any_io_executor executor;
        std::shared_ptr<http_connection> on;
        std::deque<request> requests;
        std::uint64_t asked = 0;     // requests, on this connection
        std::uint64_t answered = 0;  // of these
        std::uint64_t brought = 0;   // bytes
    };

    // ---- the opening ----
    [[nodiscard]] asio::awaitable<void> open();
    // Whether it stands; a redirect has to be followed first.
    [[nodiscard]] asio::awaitable<bool> try_open();
    void redirect(answer const& head);
    [[nodiscard]] asio::awaitable<void> refuse(answer const& head);
    [[nodiscard]] asio::awaitable<void> resolve();
    [[nodiscard]] asio::awaitable<void> read_front(host_span destination);
    [[nodiscard]] asio::awaitable<std::size_t> read_some(host_span destination);

    // ---- the lanes ----
    [[nodiscard]] asio::awaitable<void> connect(lane& of);
    [[nodiscard]] asio::awaitable<void> work(lane& of);
    [[nodiscard]] asio::awaitable<void> converse(lane& of);
    [[nodiscard]] asio::awaitable<void> ask(lane& of, request what);
    [[nodiscard]] asio::awaitable<void> read_header(lane& of, request& what);
    // False: the rest of the answer was left where it is.
    [[nodiscard]] asio::awaitable<bool> receive(lane& of, request& what);
    [[nodiscard]] asio::awaitable<void> receive_piece(lane& of, request& what);
    [[nodiscard]] std::vector<lane> make_lanes();

    // ---- the plan ----
    [[nodiscard]] std::optional<request> take(bool ahead);
    void give_back(lane& of);
    [[nodiscard]] bool may_end(lane const& of, bool cannot_go_on);
    void learn(lane& of, answer const& head);

    // ---- the checksum ----
    [[nodiscard]] bool sums_up() const noexcept;
    void sum_up(std::uint64_t offset, device_span bytes);
    [[nodiscard]] asio::awaitable<void> verify();

    asio::any_io_executor executor_;
    rx_session& session_;
    http_options options_;
    url from_;
    std::vector<asio::ip::tcp::endpoint> endpoints_;
    unsigned redirects_ = 0;

    object_identity object_;
    bool serves_ranges_ = false;
    std::uint64_t front_ = 0;
    std::optional<std::uint32_t> announced_crc_;
    std::optional<std::uint32_t> computed_crc_;

    // Its requests are the one whose answer is read at the front.
    lane first_;

    // How many requests the server answers before it closes a connection, as far as is known. One more must not be
    // under way then: the server would reset the connection, and the end of its last answer be lost.
    std::atomic<std::uint64_t> per_connection_{UINT64_MAX};

    placement_map places_;
    std::mutex mutex_;  // guards what follows: lanes have strands of their own
    fetch_plan plan_;
    std::size_t working_ = 0;  // lanes that have not ended
    crc_parts sums_;

    struct {
        std::atomic<std::uint64_t> requests{0}, connections{0}, retries{0}, redirects{0}, bytes{0};
    } counters_;
};

}  // namespace gpurx::ingest::detail
