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

// URLs of http, https and s3 are asked of servers; file:///path, and what is no URL, are files. A file needs nothing of
// the session.
//
// The first request asks for the first chunk, so that its answer brings the size along and no
// question is asked for that. Headers are read on the host: the first KiB of what arrives is copied there, 16 KiB
// at most. Bodies go from the connection's pages to their destination directly. What is cut off is fetched again,
// through a new connection, and never twice; the ETag (else the date), the size and the range of every answer have
// to be those of the first.
//
// https: a CPU decrypts what comes, into its place on the host, or through a buffer of 256 KiB per connection into that
// on a GPU. Such connections are ordinary sockets: they use none of the session's memory, queues and flows, and are not
// in its stats(). A NIC cannot put them into a GPU's memory: what it sees is encrypted.
//
// Proxies are those of the environment, as curl has them: http_proxy, https_proxy, all_proxy, no_proxy. Through one for
// http flows of the session lead to the proxy.
//
// An object that was served and is refused later (400, 401, 403) is looked for again behind the URL that was given, as
// a signed URL that a redirect has led to, or credentials, end after a while: once, and once more when bytes have come
// since. It has to be the same object: its size, and its ETag, or date where it has none.
//
// Servers speak HTTP/1.1 with Content-Length. Ranges are used where they are served. Objects of S3 are
// s3://BUCKET/KEY, each request signed (gpurx/ingest/s3.hpp), or http and https URLs, public or pre-signed. Redirects
// are followed, but from https to http. Not: compressed answers, Transfer-Encoding: chunked, HTTP/2.
//
// Files: regular ones. What the page cache has is copied from there. The rest is read by O_DIRECT where the file system
// has it, so past the page cache, into the destination itself if that is on the host and aligned as the file is; else
// into staging memory, pinned for a GPU: fetch_options::flows times chunk_size at most. Each of fetch_options::flows
// reads chunk_size bytes at a time; the reads run on threads that all files of one execution context share, eight at
// most. A file that changes meanwhile ends with errc::object_changed. Of fetch_options hold flows, chunk_size,
// deadline, crc32c (always, as nobody announces one) and stream. What async_fetch_pieces hands on of a file stands in
// staging memory.
//
// Executor: the one given; each connection, and each flow of a file, has a strand of its own on it, so with several
// threads they run at the same time. Per-operation cancellation: terminal; the object can only be destroyed then, and a
// read of a file that is under way is waited for. Thread safety: one operation at a time; stats() at any time. Errors:
// exceptions of type gpurx::system_error that name the object: errc of gpurx/ingest/error.hpp, what resolving and
// connecting report, what async_read reports; of files what the system reports, and EISDIR or EINVAL for what is no
// regular file.
//
// Lifetime: the session must outlive the object, and the object its operations.
class object {
  public:
    // Whether that names a file, or would, if there were one.
    [[nodiscard]] static bool is_file(std::string_view url) noexcept;

    // Errors: errc::bad_url, and those of check(options); std::invalid_argument for mirrors of a file.
    object(asio::any_io_executor executor, rx_session& session, std::string_view url, fetch_options options = {});
    // The same for files only, without a session. Any other URL is errc::bad_url.
    object(asio::any_io_executor executor, std::string_view path, fetch_options options = {});
    object(object&&) noexcept;
    object& operator=(object&&) noexcept;
    ~object();

    // Connects, follows redirects, and reads the header of the first answer; or opens the file. Once, before the rest.
    [[nodiscard]] asio::awaitable<void> async_open();

    // ---- once it is open ----

    [[nodiscard]] std::uint64_t size() const noexcept;
    // As the server wrote it, quotes included; empty: it has none. A file's is made of its number, its size and when it
    // was written last. Two objects of one URL with equal sizes and ETags have the same bytes.
    [[nodiscard]] std::string const& etag() const noexcept;
    // The one that redirects have led to, with the secrets that it may have; messages are without them. Of a file as it
    // was given.
    [[nodiscard]] std::string const& url() const noexcept;
    // Of a file: always.
    [[nodiscard]] bool serves_ranges() const noexcept;
    // Of the whole object, as the server says. Of a file: nothing.
    [[nodiscard]] std::optional<std::uint32_t> announced_crc32c() const noexcept;
    [[nodiscard]] std::optional<std::uint64_t> announced_crc64nvme() const noexcept;

    // Reads the next bytes from the front of the object to the host: a file's own header, say. They are on their way
    // since async_open. Errors: asio::error::eof if the object ends before.
    [[nodiscard]] asio::awaitable<void> async_read_front(host_span destination);
    // How many bytes async_read_front has read.
    [[nodiscard]] std::uint64_t front() const noexcept;

    // Brings bytes behind the front to their places, through all connections, in no order. Bytes without a place are
    // not asked for; those that an earlier call has brought are asked for again. On a GPU completion means "enqueued on
    // fetch_options::stream", as with async_read, but where a checksum is computed, which waits for the stream. Errors:
    // errc::bad_destination if places overlap, begin before the front or end beyond the object; errc::wrong_checksum,
    // from the call that brings the last bytes of it.
    [[nodiscard]] asio::awaitable<void> async_fetch(std::span<placement const> placements);

    // Brings all bytes behind the front to `take`, in pieces of up to 256 KiB, in the place of async_fetch: no more of
    // the object is held in memory than one piece for each connection, however large it is. Each byte comes once. They
    // come in order with fetch_options::flows of 1, and from a server that serves no ranges; otherwise in no order, and
    // several connections may be at `take` at the same time. What `take` throws ends the operation, and is thrown on.
    // Errors: errc::wrong_checksum, once all bytes have been taken.
    [[nodiscard]] asio::awaitable<void> async_fetch_pieces(piece_consumer take);

    // Closes the connections that keep_connections has left open: others may have the session's flows. The next
    // async_fetch connects anew. Of a file nothing is closed. From any thread, but not while an operation is going on.
    void disconnect() noexcept;

    // Of the whole object, if it was computed: then all of it was placed.
    [[nodiscard]] std::optional<std::uint32_t> crc32c() const noexcept;
    [[nodiscard]] std::optional<std::uint64_t> crc64nvme() const noexcept;

    // From any thread. Of a file requests are reads. (Bytes of answers that are not complete yet are counted in
    // rx_session::stats().)
    [[nodiscard]] fetch_stats stats() const noexcept;
    // The URL's own, and those of fetch_options::mirrors, each at s3_options::more_endpoints too. Of a file: none. From
    // any thread.
    [[nodiscard]] std::vector<mirror_stats> mirrors() const;

  private:
    std::unique_ptr<detail::source> source_;
};

}  // namespace gpurx::ingest
