// SPDX-License-Identifier: Apache-2.0
//
// The source of an object on servers. A first request opens the object. The source reads the front to the host, and
// fetches the rest with several connections at the same time. Each connection is a lane.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/http.hpp>

#include "../source/source.hpp"
#include "../together.hpp"
#include "lane.hpp"
#include "mirrors.hpp"
#include "origin.hpp"

namespace gpurx::ingest::detail {

class download final : public source {
  public:
    download(asio::any_io_executor executor, rx_session& session, std::string_view text, fetch_options options);

    [[nodiscard]] asio::awaitable<void> async_open() override;
    [[nodiscard]] std::uint64_t size() const noexcept override { return opened().object.size; }
    [[nodiscard]] std::string const& etag() const noexcept override { return opened().object.etag; }
    [[nodiscard]] std::string const& url() const noexcept override { return from().text; }
    [[nodiscard]] std::string const& commit() const noexcept override { return from_.first().from.commit(); }
    [[nodiscard]] bool serves_ranges() const noexcept override { return opened().serves_ranges; }
    [[nodiscard]] asio::awaitable<void> async_read_front(host_span destination) override;
    [[nodiscard]] std::uint64_t front() const noexcept override { return front_; }
    [[nodiscard]] asio::awaitable<void> async_fetch(std::span<placement const> placements) override;
    [[nodiscard]] asio::awaitable<void> async_fetch_pieces(piece_consumer take) override;
    void disconnect() noexcept override { kept_.clear(); }
    [[nodiscard]] object_checksums const& checksums() const noexcept override { return sums_; }
    [[nodiscard]] fetch_stats stats() const noexcept override { return context_.counters.read(); }
    [[nodiscard]] std::vector<mirror_stats> mirrors() const override { return from_.stats(); }

  private:
    [[nodiscard]] detail::url const& from() const noexcept { return from_.first().from.where(); }
    [[nodiscard]] opened_object const& opened() const noexcept { return from_.first().opened; }
    [[nodiscard]] asio::awaitable<void> open();
    [[nodiscard]] asio::awaitable<void> read_front(host_span destination);
    [[nodiscard]] asio::awaitable<void> read_some(host_span destination);

    // ---- lanes (lanes.cpp) ----
    // Fetches these bytes, in the order of the object, also with the lane of the front. Throws consumer_failure.
    [[nodiscard]] asio::awaitable<void> fetch(std::vector<byte_range> wanted);
    [[nodiscard]] std::vector<lane> make_lanes(lane first);
    void keep(std::vector<lane> all);
    void check(outcomes const& of);
    [[nodiscard]] asio::awaitable<void> work(lane& of);
    // Returns false if the last response had fewer bytes than requested.
    [[nodiscard]] asio::awaitable<bool> converse(lane& of);
    // Returns false if the rest of the response was not read.
    [[nodiscard]] asio::awaitable<bool> receive(lane& of, pending_request& what);
    [[nodiscard]] asio::awaitable<void> receive_piece(lane& of, pending_request& what);

    // ---- the plan, shared by all lanes ----
    [[nodiscard]] std::optional<pending_request> take(bool ahead);
    void give_back(lane& of);
    void finish(lane& of);
    // Returns whether no byte is left, whatever the running lanes do.
    [[nodiscard]] bool is_done();
    [[nodiscard]] bool may_end(lane const& of, bool cannot_go_on);

    asio::any_io_executor executor_;
    transfer_context context_;
    detail::mirrors from_;
    std::uint64_t front_ = 0;
    object_checksums sums_;
    delivery to_;
    // The lane of the front. Its request is the one with the response that read_front() reads.
    lane first_;
    std::vector<lane> kept_;  // with idle connections

    std::mutex mutex_;  // guards the members below: each lane has its own strand
    fetch_plan plan_;
    std::size_t working_ = 0;    // lanes that have not ended
    std::size_t under_way_ = 0;  // their pending requests
};

}  // namespace gpurx::ingest::detail
