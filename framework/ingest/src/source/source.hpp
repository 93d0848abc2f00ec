// SPDX-License-Identifier: Apache-2.0
//
// What is behind an object: the operations that gpurx/ingest/object.hpp describes.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gpurx/ingest/http.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest::detail {

class source {
  public:
    source() = default;
    source(source const&) = delete;
    source& operator=(source const&) = delete;
    virtual ~source() = default;

    [[nodiscard]] virtual asio::awaitable<void> async_open() = 0;
    [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;
    [[nodiscard]] virtual std::string const& etag() const noexcept = 0;
    [[nodiscard]] virtual std::string const& url() const noexcept = 0;
    [[nodiscard]] virtual asio::awaitable<void> async_read_front(host_span destination) = 0;
    [[nodiscard]] virtual std::uint64_t front() const noexcept = 0;
    [[nodiscard]] virtual asio::awaitable<void> async_fetch(std::span<placement const> placements) = 0;
    [[nodiscard]] virtual asio::awaitable<void> async_fetch_pieces(piece_consumer take) = 0;
    virtual void disconnect() noexcept {}
    [[nodiscard]] virtual std::optional<std::uint32_t> crc32c() const noexcept = 0;
    [[nodiscard]] virtual std::optional<std::uint32_t> announced_crc32c() const noexcept { return std::nullopt; }
    [[nodiscard]] virtual std::optional<std::uint64_t> announced_crc64nvme() const noexcept { return std::nullopt; }
    [[nodiscard]] virtual std::vector<mirror_stats> mirrors() const { return {}; }
    [[nodiscard]] virtual fetch_stats stats() const noexcept = 0;
};

}  // namespace gpurx::ingest::detail
