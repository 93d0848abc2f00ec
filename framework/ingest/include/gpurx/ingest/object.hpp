// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Objects that a URL or a path names, received into device memory: over HTTP, from S3, or from a local file.
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

/// @brief An object of a server or a local file, whose bytes go to memory of a GPU or the host.
///
/// URLs of http, https and s3 name objects of servers. A URL of the scheme `file` with an absolute path names a file.
/// Text that is no URL is a path, too. A file uses nothing of the session.
///
/// @par Order of calls
/// Complete async_open() first. Only is_file() and stats() may be called before.
///
/// @par Requests
/// The first request asks for the first chunk. Its answer brings the size along, so no request asks for that alone.
/// Headers are read on the host: the first KiB of what arrives is copied there, 16 KiB at most. Bodies go from the
/// connection's pages to their destination directly.
///
/// @par Broken connections
/// A new connection fetches the rest. No byte that has arrived is fetched twice. Every answer must agree with the first
/// one: in its size, its range and its ETag, or its date if there is no ETag.
///
/// @par TLS
/// A CPU decrypts https: into the place on the host, or through a buffer of 256 KiB per connection onto a GPU. Such
/// connections are ordinary sockets. They use none of the session's memory, queues and flows, and its stats() do not
/// count them. A NIC cannot put them into a GPU's memory, since their bytes are encrypted.
///
/// @par Proxies
/// Proxies are those of the environment, as curl has them: `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`. With a
/// proxy for http, flows of the session lead to the proxy.
///
/// @par Refusals
/// Signed URLs that a redirect led to, and credentials, expire. If a server has served an object and refuses it later
/// (400, 401, 403), the library asks the given URL again. It does so once, and once more when bytes have come since.
/// The object must be the same: its size, and its ETag, or its date if it has no ETag.
///
/// @par Protocol
/// - Servers speak HTTP/1.1 with `Content-Length`. The library uses ranges where the server serves them.
/// - Objects of S3 have URLs `s3://BUCKET/KEY`, and the library signs each request (gpurx/ingest/s3.hpp). Public and
///   pre-signed http and https URLs work too.
/// - The library follows redirects, except from https to http.
/// - Compressed answers, `Transfer-Encoding: chunked` and HTTP/2 are not supported.
///
/// @par Files
/// - Files must be regular files. A file that changes meanwhile ends with errc::object_changed.
/// - Bytes in the page cache are copied from there. `O_DIRECT` reads the others past the page cache, where the file
///   system has it.
/// - Such reads go into the destination itself if it is on the host and aligned as the file is. Otherwise they go into
///   staging memory, which is pinned for a GPU: `fetch_options::flows` times `chunk_size` at most.
/// - Each of `fetch_options::flows` reads `chunk_size` bytes at a time. The reads run on threads that all files of one
///   execution context share, eight at most.
/// - Of fetch_options `flows`, `chunk_size`, `deadline`, `crc32c` and `stream` hold. The checksum needs `always`, since
///   no server announces one.
/// - async_fetch_pieces() passes bytes of a file in staging memory.
///
/// @par Executor
/// The given executor. Each connection, and each flow of a file, has its own strand on it. With several threads they
/// run at the same time.
///
/// @par Per-operation cancellation
/// Terminal. The object can only be destroyed then. The operation waits for a read of a file that is under way.
///
/// @par Thread safety
/// One operation runs at a time. stats() is safe at any time.
///
/// @par Errors
/// Exceptions are of type gpurx::system_error and name the object. They have errc of gpurx/ingest/error.hpp, the errors
/// of resolving and connecting, and those of async_read(). For files they have the system's errors, and `EISDIR` or
/// `EINVAL` if the path names no regular file.
///
/// @par Lifetime
/// The session must outlive the object, and the object its operations.
class object {
  public:
    /// @brief Returns whether the URL names a file, which need not exist.
    [[nodiscard]] static bool is_file(std::string_view url) noexcept;

    /// @brief Constructs an object, without connecting.
    /// @param executor Executor of the connections.
    /// @param session Session of the flows.
    /// @param url URL or path.
    /// @param options Options of fetching.
    /// @throws system_error errc::bad_url, and the errors of check().
    /// @throws std::invalid_argument As check(), and if a file has mirrors.
    object(asio::any_io_executor executor, rx_session& session, std::string_view url, fetch_options options = {});
    /// @brief Constructs an object for a file, without a session.
    /// @param executor Executor of the reads.
    /// @param path Path, or URL of a file.
    /// @param options Options of fetching.
    /// @throws system_error errc::bad_url: the URL is none of a file. Otherwise as above.
    object(asio::any_io_executor executor, std::string_view path, fetch_options options = {});
    /// @brief Moves the object.
    object(object&&) noexcept;
    /// @brief Destroys the present object and moves the other.
    object& operator=(object&&) noexcept;
    /// @brief Closes the connections, or the file.
    ~object();

    /// @brief Connects, follows redirects and reads the header of the first answer; or opens the file.
    /// @pre No other operation was started.
    [[nodiscard]] asio::awaitable<void> async_open();

    // ---- once it is open ----

    /// @brief Returns the size in bytes.
    [[nodiscard]] std::uint64_t size() const noexcept;
    /// @brief Returns the ETag as the server wrote it, with its quotes; empty if the server sent none.
    ///
    /// The ETag of a file consists of its number, its size and the time of its last write. Two objects of one URL with
    /// equal sizes and ETags have the same bytes.
    [[nodiscard]] std::string const& etag() const noexcept;
    /// @brief Returns the URL that redirects have led to, with the secrets that it may have.
    ///
    /// Messages show it without secrets. The URL of a file is the given one.
    [[nodiscard]] std::string const& url() const noexcept;
    /// @brief Returns whether the server serves ranges. True for a file.
    [[nodiscard]] bool serves_ranges() const noexcept;
    /// @brief Returns the CRC32C of the whole object that the server announced. Empty for a file.
    [[nodiscard]] std::optional<std::uint32_t> announced_crc32c() const noexcept;
    /// @brief Returns the CRC-64/NVME of the whole object that the server announced. Empty for a file.
    [[nodiscard]] std::optional<std::uint64_t> announced_crc64nvme() const noexcept;

    /// @brief Reads the next bytes from the front of the object to the host, such as the header of a file format.
    ///
    /// The bytes are under way since async_open().
    ///
    /// @param destination Memory that the operation fills.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// `asio::error::eof`: the object ends before.
    [[nodiscard]] asio::awaitable<void> async_read_front(host_span destination);
    /// @brief Returns the number of bytes that async_read_front() has read.
    [[nodiscard]] std::uint64_t front() const noexcept;

    /// @brief Receives bytes behind the front into their places, through all connections, in any order.
    ///
    /// The operation does not request bytes without a place. It requests bytes again that an earlier call has brought.
    /// On a GPU completion means "enqueued on `fetch_options::stream`", as with async_read(). With a checksum the
    /// operation waits for the stream.
    ///
    /// @param placements Places of the bytes.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - errc::bad_destination: places overlap, begin before the front, or end beyond the object.
    /// - errc::wrong_checksum: thrown by the call that brings the last bytes of the object.
    [[nodiscard]] asio::awaitable<void> async_fetch(std::span<placement const> placements);

    /// @brief Passes all bytes behind the front to `take`, in pieces of up to 256 KiB. It replaces async_fetch().
    ///
    /// However large the object is, memory holds no more of it than one piece per connection. Each byte comes once.
    /// Pieces come in order with `fetch_options::flows` of 1, and from a server that serves no ranges. Otherwise they
    /// come in any order, and several connections may call `take` at the same time.
    ///
    /// @param take Function that takes a piece. Its exception ends the operation, which throws it on.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// errc::wrong_checksum, once `take` has had all bytes.
    [[nodiscard]] asio::awaitable<void> async_fetch_pieces(piece_consumer take);

    /// @brief Closes the connections that `fetch_options::keep_connections` has left open.
    ///
    /// Others can use the session's flows then. The next async_fetch() connects anew. Nothing of a file is closed.
    ///
    /// @pre No operation is pending.
    ///
    /// @par Thread safety
    /// Safe from any thread.
    void disconnect() noexcept;

    /// @brief Returns the CRC32C of the whole object if it was computed. All of the object was placed then.
    [[nodiscard]] std::optional<std::uint32_t> crc32c() const noexcept;
    /// @brief Returns the CRC-64/NVME of the whole object if it was computed. All of the object was placed then.
    [[nodiscard]] std::optional<std::uint64_t> crc64nvme() const noexcept;

    /// @brief Returns the counters. Requests of a file are reads.
    ///
    /// rx_session::stats() counts bytes of incomplete answers too.
    ///
    /// @par Thread safety
    /// Safe from any thread.
    [[nodiscard]] fetch_stats stats() const noexcept;
    /// @brief Returns counters of each URL: the object's own, then those of `fetch_options::mirrors`.
    ///
    /// With `s3_options::more_endpoints` each URL has counters at each server. A file has none.
    ///
    /// @par Thread safety
    /// Safe from any thread.
    [[nodiscard]] std::vector<mirror_stats> mirrors() const;

  private:
    std::unique_ptr<detail::source> source_;
};

}  // namespace gpurx::ingest
