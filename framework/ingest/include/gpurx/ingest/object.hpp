// SPDX-License-Identifier: Apache-2.0
//
// object: what a URL or a path names, received into device memory: over HTTP, from S3, or from a local file.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/error.hpp>
#include <gpurx/ingest/http.hpp>
#include <gpurx/session.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest {

namespace detail {
class source;
}

// What http_object does, for every kind of place. URLs of http, https and s3 are an http_object's; file:///path, and
// what is no URL, are files. A file needs nothing of the session.
//
// Files: regular ones. What the page cache has is copied from there. The rest is read by O_DIRECT where the file system
// has it, so past the page cache, into the destination itself if that is on the host and aligned as the file is; else
// into staging memory, pinned for a GPU: fetch_options::flows times chunk_size at most. Each of fetch_options::flows
// reads chunk_size bytes at a time; the reads run on threads that all files of one execution context share, eight at
// most. A file that changes meanwhile ends with errc::object_changed. Of fetch_options hold flows, chunk_size,
// deadline, crc32c (always, as nobody announces one) and stream.
//
// Executor, thread safety, lifetime: as for http_object; each flow has a strand of its own. Per-operation cancellation:
// terminal; a read that is under way is waited for. Errors: exceptions of type gpurx::system_error that name the
// object: as for http_object; of files what the system reports, and EISDIR or EINVAL for what is no regular file. What
// async_fetch_pieces hands on of a file stands in staging memory.
class object {
  public:
    // Whether that names a file, or would, if there were one.
    [[nodiscard]] static bool is_file(std::string_view url) noexcept;

    // Errors: errc::bad_url; std::invalid_argument for no flows, chunks of no size, or mirrors of a file.
    object(asio::any_io_executor executor, rx_session& session, std::string_view url, fetch_options options = {});
    // The same for files only, without a session. Any other URL is errc::bad_url.
    object(asio::any_io_executor executor, std::string_view path, fetch_options options = {});
    object(object&&) noexcept;
    object& operator=(object&&) noexcept;
    ~object();

    // Once, before the rest.
    [[nodiscard]] asio::awaitable<void> async_open();

    // ---- once it is open ----

    [[nodiscard]] std::uint64_t size() const noexcept;
    // That of the server, quotes included; empty: it has none. A file's is made of its number, its size and when it was
    // written last. Two objects of one URL with equal sizes and ETags have the same bytes.
    [[nodiscard]] std::string const& etag() const noexcept;
    // As http_object::url(); of a file as it was given.
    [[nodiscard]] std::string const& url() const noexcept;

    // As those of http_object.
    [[nodiscard]] asio::awaitable<void> async_read_front(host_span destination);
    [[nodiscard]] std::uint64_t front() const noexcept;
    [[nodiscard]] asio::awaitable<void> async_fetch(std::span<placement const> placements);
    [[nodiscard]] asio::awaitable<void> async_fetch_pieces(piece_consumer take);
    // As that of http_object. Of a file nothing is closed.
    void disconnect() noexcept;
    [[nodiscard]] std::optional<std::uint32_t> crc32c() const noexcept;
    // As those of http_object. Of a file: nothing.
    [[nodiscard]] std::optional<std::uint32_t> announced_crc32c() const noexcept;
    [[nodiscard]] std::optional<std::uint64_t> announced_crc64nvme() const noexcept;
    [[nodiscard]] std::vector<mirror_stats> mirrors() const;

    // From any thread. Of a file: requests are reads.
    [[nodiscard]] fetch_stats stats() const noexcept;

  private:
    std::unique_ptr<detail::source> source_;
};

}  // namespace gpurx::ingest
