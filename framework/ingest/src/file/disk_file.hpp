// SPDX-License-Identifier: Apache-2.0
//
// A file open for reading. Its functions block; io_threads runs them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <gpurx/error.hpp>

#include "../source/fetch_plan.hpp"

namespace gpurx::ingest::detail {

class disk_file {
  public:
    disk_file() = default;
    disk_file(disk_file const&) = delete;
    disk_file& operator=(disk_file const&) = delete;
    ~disk_file();

    // Call it once. Errors: the system's; EISDIR and EINVAL if it is not a regular file, with its kind in `advice`.
    [[nodiscard]] error_code open(std::string const& path, std::string& advice);

    // ---- once it is open ----

    [[nodiscard]] std::uint64_t size() const noexcept { return facts_.size; }
    // Returns the tag in the form of an ETag.
    [[nodiscard]] std::string tag() const;
    // Errors: errc::object_changed.
    [[nodiscard]] error_code check_unchanged() const noexcept;

    // Lets read() bypass the page cache from now on, if the file system supports it. Reads must then be aligned().
    void read_directly();
    [[nodiscard]] read_alignment aligned() const noexcept { return aligned_; }

    // Reads at least `needed` bytes at `offset`; the file may end after them. From any thread.
    // Errors: errc::object_changed if there are fewer; the system's errors.
    [[nodiscard]] error_code read(std::uint64_t offset, std::span<std::byte> to, std::size_t needed) noexcept;
    // Reads all bytes from the page cache, to any memory. Returns false if some are not cached. From any thread.
    [[nodiscard]] bool read_cached(std::uint64_t offset, std::span<std::byte> to) const noexcept;

  private:
    // Facts that identify the file and its content.
    struct facts {
        std::uint64_t device = 0;
        std::uint64_t number = 0;
        std::uint64_t size = 0;
        std::int64_t seconds = 0;  // time of the last write
        std::int64_t nanoseconds = 0;

        friend bool operator==(facts const&, facts const&) = default;
    };

    int descriptor_ = -1;
    int direct_ = -1;  // the same file, for reads that bypass the page cache
    std::atomic<bool> reads_directly_{false};
    facts facts_;
    read_alignment aligned_;
};

}  // namespace gpurx::ingest::detail
