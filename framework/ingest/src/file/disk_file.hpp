// SPDX-License-Identifier: Apache-2.0
//
// A file open for reading. Its functions block; io_threads runs them.
#pragma once

#include <atomic>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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

class io_threads final : public asio::execution_context::service {
  public:
    static asio::execution_context::id id;

    // Must not throw.
    using job = std::function<error_code()>;
    using handler = asio::any_completion_handler<void(error_code)>;

    explicit io_threads(asio::execution_context& of);

    // The handler runs on its executor, by default `executor`.
    void start(asio::any_io_executor const& executor, job work, handler done);

  private:
    // Waits for running jobs, because they write to memory of coroutines that are destroyed after this.
    void shutdown() override;

    std::unique_ptr<asio::thread_pool> threads_;
};

// Runs the job on a thread of `executor`'s context. Cancellation: none, because the job cannot be stopped. A coroutine
// that is cancelled meanwhile ends with its next operation.
[[nodiscard]] asio::awaitable<error_code> async_run(asio::any_io_executor executor, io_threads::job work);

}  // namespace gpurx::ingest::detail
