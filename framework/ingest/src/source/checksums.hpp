// SPDX-License-Identifier: Apache-2.0
//
// The checksums of an object that arrives in parts, in any order, and perhaps more than once. The checksum of a part is
// computed in its memory.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <gpurx/ingest/http.hpp>
#include <gpurx/memory.hpp>
#include <gpurx/views.hpp>

#include "../byte_range.hpp"

namespace gpurx::ingest::detail {

// Checksums of parts, each joined with its neighbours on arrival. Memory grows only with the number of gaps.
template <class Checksum>
class joined_parts {
  public:
    // Precondition: no byte comes twice.
    void add(byte_range bytes, Checksum crc);
    // Empty: the parts are not all of an object of that size.
    [[nodiscard]] std::optional<Checksum> whole(std::uint64_t size) const;
    [[nodiscard]] std::size_t count() const noexcept { return parts_.size(); }
    // Calls use(byte_range, Checksum) for each that is left, in the order of the object.
    template <class Use>
    void for_each(Use use) const
    {
        for (auto const& [begin, each] : parts_)
            use(byte_range{begin, each.end}, each.crc);
    }

  private:
    struct part {
        std::uint64_t end;
        Checksum crc;
    };

    std::map<std::uint64_t, part> parts_;  // by begin
};

// Checksums of ranges that may arrive again. The last arrival of a byte counts.
template <class Checksum>
class latest_ranges {
  public:
    // Adds a range, which replaces the ranges within it. If the new range is part of an old one, or overlaps an old one
    // that extends beyond it, the old checksum cannot be cut. The old range then stays, and the new one is ignored.
    void put(byte_range bytes, Checksum crc);
    // Empty: the ranges are not all of an object of that size.
    [[nodiscard]] std::optional<Checksum> whole(std::uint64_t size);

  private:
    struct range {
        std::uint64_t end;
        Checksum crc;
    };

    std::map<std::uint64_t, range> ranges_;  // by begin
    std::uint64_t size_ = 0;                 // of all of them
    std::optional<Checksum> joined_;         // until one changes
};

// CRC32C: a GPU writes those of parts that lie there.
class crc_parts {
  public:
    void add(byte_range bytes, std::uint32_t crc) { on_host_.add(bytes, crc); }
    // Returns the memory into which a GPU writes the CRC32C of these bytes of the object.
    [[nodiscard]] memory_span add_on_gpu(byte_range bytes);
    // Returns whether a GPU writes checksums. If so, wait for its stream before joined().
    [[nodiscard]] bool on_gpu() const noexcept { return !on_gpu_.empty(); }
    [[nodiscard]] joined_parts<std::uint32_t> joined() const;
    // Begins other parts. A GPU may still be writing checksums.
    void forget() noexcept;
    // The same after the GPU has written all: the memory is reused.
    void reuse() noexcept;

  private:
    struct gpu_part {
        byte_range bytes;
        std::uint32_t const* crc;
    };

    joined_parts<std::uint32_t> on_host_;
    std::vector<gpu_part> on_gpu_;
    std::vector<device_memory> blocks_;  // pinned, as a GPU writes them
    std::size_t used_ = 0;               // of the last
};

// CRC-64/NVME, of parts on the host: GPUs have no code for it.
using crc64_parts = joined_parts<std::uint64_t>;

class object_checksums {
  public:
    object_checksums(fetch_options::checksum wanted, cuda_stream_ref stream) : wanted_{wanted}, stream_{stream} {}

    // Sets the server's checksums, before the first byte.
    void announce(std::optional<std::uint32_t> crc32c, std::optional<std::uint64_t> crc64nvme) noexcept
    {
        announced_crc_ = crc32c;
        announced_crc64_ = crc64nvme;
    }
    // The next bytes of the front.
    void add_front(std::uint64_t offset, std::span<std::byte const> bytes);
    // Begins a fetch. Forgets the bytes of a failed one.
    void begin();
    // Adds bytes of the fetch, at their place; each byte once. A GPU sums them up on `stream`, for which the stream of
    // the constructor must wait before async_verify(). From any thread.
    void add(std::uint64_t offset, memory_span bytes, cuda_stream_ref stream);
    // Ends the fetch. Compares when all bytes have arrived, in any number of fetches, and when they arrive again.
    // `on_gpu`: one of the places on a GPU, if any. Errors: errc::wrong_checksum, with `about` and the difference.
    [[nodiscard]] asio::awaitable<void> async_verify(asio::any_io_executor executor, memory_span on_gpu,
                                                     diagnostics about, std::uint64_t size);

    [[nodiscard]] std::optional<std::uint32_t> announced_crc32c() const noexcept { return announced_crc_; }
    [[nodiscard]] std::optional<std::uint64_t> announced_crc64nvme() const noexcept { return announced_crc64_; }
    [[nodiscard]] std::optional<std::uint32_t> computed_crc32c() const noexcept { return computed_crc_; }
    [[nodiscard]] std::optional<std::uint64_t> computed_crc64nvme() const noexcept { return computed_crc64_; }

  private:
    [[nodiscard]] bool sums_up() const noexcept;
    [[nodiscard]] bool sums_up_64() const noexcept;
    void add_here(byte_range part, std::span<std::byte const> bytes);
    void verify_64(diagnostics const& about, std::uint64_t size);

    fetch_options::checksum wanted_;
    cuda_stream_ref stream_;
    std::optional<std::uint32_t> announced_crc_;
    std::optional<std::uint32_t> computed_crc_;
    std::optional<std::uint64_t> announced_crc64_;
    std::optional<std::uint64_t> computed_crc64_;

    // Checksums of the front, and of ended fetches.
    std::uint32_t front_ = 0;
    std::uint64_t front_64_ = 0;
    latest_ranges<std::uint32_t> ranges_;
    latest_ranges<std::uint64_t> ranges_64_;

    std::mutex mutex_;  // guards the members below, of the running fetch
    crc_parts parts_;
    crc64_parts parts_64_;
};

}  // namespace gpurx::ingest::detail
