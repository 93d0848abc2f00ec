// SPDX-License-Identifier: Apache-2.0
//
// The source of a local file: several flows read it piece by piece. fetch_plan.hpp decides on blocks, disk_file.hpp has
// the system calls.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <gpurx/memory.hpp>

#include "../source/checksums.hpp"
#include "../source/fetch_plan.hpp"
#include "../source/source.hpp"
#include "disk_file.hpp"

namespace gpurx::ingest::detail {

// Memory for reads, allocated at the first use. The system allocates pages of the host memory when they are written.
class staging {
  public:
    [[nodiscard]] std::span<std::byte> on_host(std::size_t bytes)
    {
        constexpr std::size_t page = 4096;
        if (on_host_ == nullptr)
            on_host_.reset(static_cast<std::byte*>(std::aligned_alloc(page, (bytes + page - 1) / page * page)));
        if (on_host_ == nullptr)
            throw std::bad_alloc{};
        return {on_host_.get(), bytes};
    }
    // For a GPU to read.
    [[nodiscard]] std::span<std::byte> pinned(std::size_t bytes)
    {
        if (!pinned_.valid())
            pinned_ = device_memory::on_pinned_host(bytes);
        return {reinterpret_cast<std::byte*>(pinned_.span().address()), bytes};
    }

  private:
    struct freed {
        void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
    };

    std::unique_ptr<std::byte, freed> on_host_;
    device_memory pinned_;
};

class file_source final : public source {
  public:
    file_source(asio::any_io_executor executor, std::string_view text, fetch_options options);

    [[nodiscard]] asio::awaitable<void> async_open() override;
    [[nodiscard]] std::uint64_t size() const noexcept override { return file_.size(); }
    [[nodiscard]] std::string const& etag() const noexcept override { return etag_; }
    [[nodiscard]] std::string const& url() const noexcept override { return text_; }
    [[nodiscard]] asio::awaitable<void> async_read_front(host_span destination) override;
    [[nodiscard]] std::uint64_t front() const noexcept override { return front_; }
    [[nodiscard]] asio::awaitable<void> async_fetch(std::span<placement const> placements) override;
    [[nodiscard]] asio::awaitable<void> async_fetch_pieces(piece_consumer take) override;
    [[nodiscard]] object_checksums const& checksums() const noexcept override { return sums_; }
    [[nodiscard]] fetch_stats stats() const noexcept override;

  private:
    // A flow.
    struct lane {
        asio::any_io_executor executor;
        cuda_stream_ref stream;         // for bytes on a GPU
        std::array<staging, 2> memory;  // for pieces to a GPU by turns: one is read while the last crosses
        std::size_t turn = 0;
    };
    // A piece that was read, for a GPU.
    struct pinned_piece {
        fetch_piece piece;
        std::span<std::byte> blocks;
    };

    void check_time() const;
    [[noreturn]] void fail(char const* operation, error_code code, std::string advice) const;
    // Throws the error of a read.
    void check(error_code code) const;

    // ---- the flows ----
    // Fetches all bytes of the plan.
    [[nodiscard]] asio::awaitable<void> run();
    [[nodiscard]] asio::awaitable<void> work(lane& of);
    [[nodiscard]] asio::awaitable<void> hand_over(lane& of, fetch_piece const& piece);
    [[nodiscard]] asio::awaitable<void> bring(lane& of, fetch_piece const& piece);
    // Reads a piece to pinned memory, and uploads the last one meanwhile.
    [[nodiscard]] asio::awaitable<pinned_piece> bring_pinned(lane& of, fetch_piece const& piece,
                                                             std::optional<pinned_piece> const& last);
    [[nodiscard]] asio::awaitable<void> read_pinned(pinned_piece const& into);
    // Runs on a thread that may block.
    [[nodiscard]] error_code read_in_place_of(byte_range bytes, memory_span place, read_in_place const& parts,
                                              std::span<std::byte> block);
    // Reads from the page cache, if it has all bytes.
    [[nodiscard]] bool read_cached(fetch_piece const& piece);
    [[nodiscard]] error_code read_and_spread(fetch_piece const& piece, std::span<std::byte> blocks);
    [[nodiscard]] error_code read(byte_range blocks, std::byte* to, std::uint64_t end);
    // Copies the blocks to a GPU's memory, and waits for the end of the copy.
    [[nodiscard]] asio::awaitable<void> upload(lane& of, pinned_piece const& what);
    void note_placed(lane& of, fetch_piece const& piece);

    // ---- the plan ----
    [[nodiscard]] std::optional<fetch_piece> take();
    [[nodiscard]] bool is_for_gpu(fetch_piece const& piece) const noexcept;
    [[nodiscard]] std::size_t staging_size() const noexcept;
    // Calls use(bytes of the file, their place) for each place of the wanted bytes.
    template <class Use>
    void for_each_place(fetch_piece const& piece, Use use) const;

    asio::any_io_executor executor_;
    fetch_options options_;
    std::string text_;  // as given
    std::string path_;
    std::string etag_;
    std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::time_point::max();
    disk_file file_;
    std::uint64_t front_ = 0;
    object_checksums sums_{options_.crc32c, options_.stream};
    delivery to_{sums_};

    std::mutex mutex_;  // guards the members below: each lane has its own strand
    fetch_plan plan_;

    struct {
        std::atomic<std::uint64_t> reads{0}, bytes{0};
    } counters_;
};

}  // namespace gpurx::ingest::detail
