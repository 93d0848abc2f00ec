// SPDX-License-Identifier: Apache-2.0
//
// What an http_object does: opens the object with a first request (opening.hpp), reads its front to the host, and
// fetches the rest through several connections at once (lanes.hpp).
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <gpurx/ingest/http.hpp>

#include "delivery.hpp"
#include "lane.hpp"
#include "lanes.hpp"
#include "mirrors.hpp"
#include "object_checksums.hpp"
#include "transfer_context.hpp"

namespace gpurx::ingest::detail {

class download {
  public:
    download(asio::any_io_executor executor, rx_session& session, std::string_view text, fetch_options options);

    [[nodiscard]] asio::awaitable<void> async_open();
    [[nodiscard]] asio::awaitable<void> async_read_front(host_span destination);
    [[nodiscard]] asio::awaitable<void> async_fetch(std::span<placement const> placements);
    [[nodiscard]] asio::awaitable<void> async_fetch_pieces(piece_consumer take);
    void disconnect() noexcept { lanes_.disconnect(); }

    [[nodiscard]] url const& from() const noexcept { return from_.first().from.where(); }
    [[nodiscard]] opened_object const& opened() const noexcept { return from_.first().opened; }
    [[nodiscard]] std::uint64_t front() const noexcept { return front_; }
    [[nodiscard]] object_checksums const& checksums() const noexcept { return sums_; }
    [[nodiscard]] fetch_stats stats() const noexcept { return context_.counters.read(); }
    [[nodiscard]] std::vector<mirror_stats> mirrors_stats() const { return from_.stats(); }

  private:
    [[nodiscard]] asio::awaitable<void> open();
    [[nodiscard]] asio::awaitable<void> read_front(host_span destination);
    [[nodiscard]] asio::awaitable<void> read_some(host_span destination);
    [[nodiscard]] asio::awaitable<void> fetch(std::vector<byte_range> wanted);

    transfer_context context_;
    mirrors from_;
    std::uint64_t front_ = 0;
    object_checksums sums_;
    delivery to_;
    // Its requests are the one whose answer is read at the front.
    lane first_;
    lanes lanes_;
};

}  // namespace gpurx::ingest::detail
