// SPDX-License-Identifier: Apache-2.0
//
// A file that is open for reading. Its functions block.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <gpurx/error.hpp>

#include "blocks.hpp"

namespace gpurx::ingest::detail {

class disk_file {
  public:
    disk_file() = default;
    disk_file(disk_file const&) = delete;
    disk_file& operator=(disk_file const&) = delete;
    ~disk_file();

    // Once. Errors: what the system reports; EISDIR and EINVAL for what is no regular file, and `advice` says what.
    [[nodiscard]] error_code open(std::string const& path, std::string& advice);

    // ---- once it is open ----

    [[nodiscard]] std::uint64_t size() const noexcept { return facts_.size; }
    // As ETags are written.
    [[nodiscard]] std::string tag() const;
    // Errors: errc::object_changed.
    [[nodiscard]] error_code check_unchanged() const noexcept;

    // From now on read() goes past the page cache, if the file system can. Its reads have to be aligned() then.
    void read_directly();
    [[nodiscard]] read_alignment aligned() const noexcept { return aligned_; }

    // At least `needed` bytes of those at `offset`, where the file may end. From any thread.
    // Errors: errc::object_changed if there are fewer; what the system reports.
    [[nodiscard]] error_code read(std::uint64_t offset, std::span<std::byte> to, std::size_t needed) noexcept;
    // All of it out of the page cache, wherever it is to go. False: some of it is not there. From any thread.
    [[nodiscard]] bool read_cached(std::uint64_t offset, std::span<std::byte> to) const noexcept;

  private:
    // What tells it from another.
    struct facts {
        std::uint64_t device = 0;
        std::uint64_t number = 0;
        std::uint64_t size = 0;
        std::int64_t seconds = 0;  // when it was written last
        std::int64_t nanoseconds = 0;

        friend bool operator==(facts const&, facts const&) = default;
    };

    int descriptor_ = -1;
    int direct_ = -1;  // the same file, to be read past the page cache
    std::atomic<bool> reads_directly_{false};
    facts facts_;
    read_alignment aligned_;
};

}  // namespace gpurx::ingest::detail
