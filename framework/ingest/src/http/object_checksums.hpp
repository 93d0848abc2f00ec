// SPDX-License-Identifier: Apache-2.0
//
// The checksums of an object that is being received, at once or bit by bit: which of them are computed, and whether
// they are the server's.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include <gpurx/ingest/http.hpp>
#include <gpurx/views.hpp>

#include "../net/url.hpp"
#include "../source/crc_parts.hpp"

namespace gpurx::ingest::detail {

class object_checksums {
  public:
    object_checksums(fetch_options::checksum wanted, cuda_stream_ref stream) : wanted_{wanted}, stream_{stream} {}

    // What the server says, before there is any byte.
    void announce(std::optional<std::uint32_t> crc32c, std::optional<std::uint64_t> crc64nvme) noexcept
    {
        announced_crc_ = crc32c;
        announced_crc64_ = crc64nvme;
    }
    // The next bytes of the front.
    void add_front(std::uint64_t offset, std::span<std::byte const> bytes);
    // Of a fetch that begins; what one that failed has brought is forgotten.
    void begin();
    // Bytes that it has brought, at their place; each byte once. From any thread.
    void add(std::uint64_t offset, memory_span bytes);
    // It is over. Compares once all bytes have come, in however many fetches, and when they come anew. `on_gpu`: one of
    // the places, if any was a GPU's. Errors: errc::wrong_checksum.
    [[nodiscard]] asio::awaitable<void> async_verify(asio::any_io_executor executor, memory_span on_gpu,
                                                     url const& from, std::uint64_t size);

    [[nodiscard]] std::optional<std::uint32_t> announced_crc32c() const noexcept { return announced_crc_; }
    [[nodiscard]] std::optional<std::uint64_t> announced_crc64nvme() const noexcept { return announced_crc64_; }
    [[nodiscard]] std::optional<std::uint32_t> computed_crc32c() const noexcept { return computed_crc_; }
    [[nodiscard]] std::optional<std::uint64_t> computed_crc64nvme() const noexcept { return computed_crc64_; }

  private:
    [[nodiscard]] bool sums_up() const noexcept;
    [[nodiscard]] bool sums_up_64() const noexcept;
    void add_here(byte_range part, std::span<std::byte const> bytes);
    void verify_64(url const& from, std::uint64_t size);

    fetch_options::checksum wanted_;
    cuda_stream_ref stream_;
    std::optional<std::uint32_t> announced_crc_;
    std::optional<std::uint32_t> computed_crc_;
    std::optional<std::uint64_t> announced_crc64_;
    std::optional<std::uint64_t> computed_crc64_;

    // Of the front, and of fetches that are over.
    std::uint32_t front_ = 0;
    std::uint64_t front_64_ = 0;
    latest_ranges<std::uint32_t> ranges_;
    latest_ranges<std::uint64_t> ranges_64_;

    std::mutex mutex_;  // guards what follows: of the fetch that goes on
    crc_parts parts_;
    crc64_parts parts_64_;
};

}  // namespace gpurx::ingest::detail
