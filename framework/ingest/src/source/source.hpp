// SPDX-License-Identifier: Apache-2.0
//
// The interface behind gpurx/ingest/object.hpp, and the delivery of an object's bytes.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gpurx/ingest/http.hpp>
#include <gpurx/views.hpp>

#include "checksums.hpp"
#include "fetch_plan.hpp"

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
    // Empty unless a server states a commit.
    [[nodiscard]] virtual std::string const& commit() const noexcept
    {
        static std::string const none;
        return none;
    }
    [[nodiscard]] virtual bool serves_ranges() const noexcept { return true; }
    [[nodiscard]] virtual asio::awaitable<void> async_read_front(host_span destination) = 0;
    [[nodiscard]] virtual std::uint64_t front() const noexcept = 0;
    [[nodiscard]] virtual asio::awaitable<void> async_fetch(std::span<placement const> placements) = 0;
    [[nodiscard]] virtual asio::awaitable<void> async_fetch_pieces(piece_consumer take) = 0;
    virtual void disconnect() noexcept {}
    [[nodiscard]] virtual object_checksums const& checksums() const noexcept = 0;
    [[nodiscard]] virtual std::vector<mirror_stats> mirrors() const { return {}; }
    [[nodiscard]] virtual fetch_stats stats() const noexcept = 0;
};

// Not a failure of a connection, whatever its code: another attempt would not succeed.
struct consumer_failure : std::exception {
    // NOLINTNEXTLINE(bugprone-throw-keyword-missing): the pointer is kept, not thrown
    explicit consumer_failure(std::exception_ptr failure) noexcept : why{std::move(failure)} {}

    std::exception_ptr why;
};

// Several lanes deliver at the same time.
class delivery {
  public:
    // Bytes that a consumer takes at a time: few enough to be in a core's cache.
    static constexpr std::uint64_t piece_size = 256 << 10;

    explicit delivery(object_checksums& sums) : sums_{sums} {}

    // Delivers to these places. Returns false if two of them share a byte, or if one begins before `front` or ends
    // beyond `size`.
    [[nodiscard]] bool to(std::span<placement const> placements, std::uint64_t front, std::uint64_t size);
    void to(piece_consumer take);

    // Returns whether a consumer takes the pieces, and no bytes have a place.
    [[nodiscard]] bool hands_on() const noexcept { return take_ != nullptr; }
    [[nodiscard]] placement_map const& places() const noexcept { return places_; }
    // Bytes of the object that have a place.
    [[nodiscard]] std::vector<byte_range> wanted() const;
    // Returns the places on GPUs.
    [[nodiscard]] std::vector<memory_span> on_gpus() const;
    // Returns one of them; empty if there is none.
    [[nodiscard]] memory_span on_gpu() const noexcept;

    // Returns the memory for the bytes from `at` on, at most this number; in `landing`, if they do not stay there.
    [[nodiscard]] memory_span place_of(std::uint64_t at, std::uint64_t at_most, std::vector<std::byte>& landing) const;
    // Reports that the bytes have arrived there; on a GPU, in the order of the stream. Throws consumer_failure.
    [[nodiscard]] asio::awaitable<void> async_deliver(std::uint64_t at, memory_span bytes, cuda_stream_ref stream);

  private:
    object_checksums& sums_;
    placement_map places_;
    piece_consumer take_;  // used instead of places, if set
};

}  // namespace gpurx::ingest::detail
