// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Objects from HTTP, S3 or local files, received into device memory.
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

/// @brief An object of a server or a local file, to fetch into memory.
///
/// The memory is that of a GPU or of the host.
///
/// URLs of http, https, s3, gs, az and hf name objects of servers. A URL of the scheme `file` with an absolute path
/// names a file. Text that is not a URL is the path of a file. A file uses nothing of the session.
///
/// @par Order of calls
/// Complete async_open() first. Before that, call only is_file() and stats().
///
/// @par Requests
/// The first request asks for the first chunk. Its response has the size too, so no separate request asks for the size.
/// The library reads headers on the host: it copies the first KiB of a response there, at most 16 KiB. Bodies go from
/// the connection's pages to their destination directly.
///
/// @par Broken connections
/// A new connection fetches the rest. The library fetches no byte twice that has arrived. Every response must agree
/// with the first one in size, range and ETag, or in the date if there is no ETag.
///
/// @par TLS
/// A CPU decrypts https: directly into the destination on the host, or through a buffer of 256 KiB per connection onto
/// a GPU. Such connections are ordinary sockets. They use none of the session's memory, queues and flows, and its
/// stats() do not count them. A NIC cannot put the bytes into a GPU's memory, because they are encrypted.
///
/// @par Proxies
/// The library uses the proxies of the environment, as curl does: `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`.
/// With a proxy for http, flows of the session lead to the proxy.
///
/// @par Expired URLs and credentials
/// Signed URLs of redirects expire, and so do credentials. If a server has served an object and refuses it later (400,
/// 401, 403), the library resolves the original URL again. It does so once, and once more after further bytes have
/// arrived. The object must have the same size, and the same ETag, or date if it has no ETag.
///
/// @par Protocol
/// - Servers must speak HTTP/1.1 with `Content-Length`. The library uses ranges if the server serves them.
/// - Objects of S3 have URLs `s3://BUCKET/KEY`, and the library signs each request (gpurx/ingest/s3.hpp). Public and
///   pre-signed http and https URLs work too.
/// - Objects of Google Cloud Storage have URLs `gs://BUCKET/OBJECT`.
/// - Blobs of Azure have URLs `az://ACCOUNT/CONTAINER/BLOB`.
/// - Files of Hugging Face's hub have URLs `hf://ORG/MODEL@REVISION/FILE`. The revision is `main` by default. Write a
///   slash of it as `%2F`. `HF_ENDPOINT` names a mirror of the hub.
/// - The library follows redirects, except from https to http.
/// - Compressed responses, `Transfer-Encoding: chunked` and HTTP/2 are not supported.
///
/// @par Files
/// - Files must be regular files. If a file changes meanwhile, the operation fails with errc::object_changed.
/// - The library copies bytes that are in the page cache. It reads the other bytes with `O_DIRECT`, bypassing the page
///   cache, if the file system supports that.
/// - Such reads go directly into the destination if it is on the host and aligned as the file is. Otherwise they go
///   into staging memory: at most `fetch_options::flows` times `chunk_size`. For a GPU it is pinned, and twice as
///   large: one chunk of a flow crosses while the next is read.
/// - `fetch_options::flows` reads run at a time, each of `chunk_size` bytes. All files of one execution context share
///   at most eight threads for reads.
/// - Of fetch_options, `flows`, `chunk_size`, `deadline`, `crc32c` and `stream` apply. For a checksum set `always`,
///   because no server announces one.
/// - async_fetch_pieces() passes bytes of a file in staging memory.
///
/// @par Executor
/// The executor of the constructor. Each connection, and each flow of a file, has its own strand on it. With several
/// threads they run at the same time.
///
/// @par Per-operation cancellation
/// Terminal. After cancellation the object can only be destroyed. The operation waits for unfinished reads of a file.
///
/// @par Thread safety
/// One operation runs at a time. stats() is safe at any time.
///
/// @par Errors
/// Exceptions are of type gpurx::system_error and name the object:
/// - errc of gpurx/ingest/error.hpp;
/// - the errors of resolving and connecting;
/// - the errors of async_read();
/// - for files, the system's errors, and `EISDIR` or `EINVAL` if the path names no regular file.
///
/// @par Lifetime
/// The session must outlive the object, and the object its operations.
class object {
  public:
    /// @brief Returns whether the URL names a file. The file need not exist.
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
    /// @throws system_error errc::bad_url: the URL does not name a file. Otherwise as above.
    object(asio::any_io_executor executor, std::string_view path, fetch_options options = {});
    /// @brief Moves the object.
    object(object&&) noexcept;
    /// @brief Destroys the present object and moves the other.
    object& operator=(object&&) noexcept;
    /// @brief Closes the connections, or the file.
    ~object();

    /// @brief Connects and reads the header of the first response; or opens the file.
    ///
    /// The operation follows redirects.
    /// @pre No other operation was started.
    [[nodiscard]] asio::awaitable<void> async_open();

    // ---- once it is open ----

    /// @brief Returns the size in bytes.
    [[nodiscard]] std::uint64_t size() const noexcept;
    /// @brief Returns the ETag, with its quotes; empty if the server sent none.
    ///
    /// The text is exactly as the server wrote it.
    ///
    /// The ETag of a file consists of its inode number, its size and the time of its last write. Two objects of one URL
    /// with equal sizes and ETags have the same bytes.
    [[nodiscard]] std::string const& etag() const noexcept;
    /// @brief Returns the commit of the repository that the file belongs to; empty if the server states none.
    ///
    /// Hugging Face's hub and its mirrors state it (`X-Repo-Commit`). To fetch other files of the same commit, use
    /// url_at_commit().
    [[nodiscard]] std::string const& commit() const noexcept;
    /// @brief Returns the URL after redirects, including its secrets.
    ///
    /// Messages have it without secrets. For a file it is the given URL.
    [[nodiscard]] std::string const& url() const noexcept;
    /// @brief Returns whether the server serves ranges; true for a file.
    [[nodiscard]] bool serves_ranges() const noexcept;
    /// @brief Returns the whole object's CRC32C from the server; empty for a file.
    [[nodiscard]] std::optional<std::uint32_t> announced_crc32c() const noexcept;
    /// @brief Returns the whole object's CRC-64/NVME from the server; empty for a file.
    [[nodiscard]] std::optional<std::uint64_t> announced_crc64nvme() const noexcept;

    /// @brief Reads the next bytes from the object's front to the host.
    ///
    /// Use it for the header of a file format.
    ///
    /// async_open() has already requested the bytes.
    ///
    /// @param destination Memory that the operation fills.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// `asio::error::eof`: the object ends earlier.
    [[nodiscard]] asio::awaitable<void> async_read_front(host_span destination);
    /// @brief Returns the number of bytes that async_read_front() has read.
    [[nodiscard]] std::uint64_t front() const noexcept;

    /// @brief Receives bytes behind the front into their places.
    ///
    /// The bytes come through all connections, in any order.
    ///
    /// The operation does not request bytes without a place. It requests bytes again even if an earlier call has
    /// received them. On a GPU, completion means "enqueued on `fetch_options::stream`", as with async_read(). With a
    /// checksum the operation waits for the stream.
    ///
    /// @param placements Places of the bytes.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - errc::bad_destination: places overlap, begin before the front, or end beyond the object.
    /// - errc::wrong_checksum: the call that receives the last bytes of the object throws it.
    [[nodiscard]] asio::awaitable<void> async_fetch(std::span<placement const> placements);

    /// @brief Passes all bytes behind the front to `take`, in pieces.
    ///
    /// Call it instead of async_fetch(). Pieces have up to 256 KiB.
    ///
    /// Memory holds at most one piece per connection, however large the object is. Each byte comes once. Pieces come in
    /// order if `fetch_options::flows` is 1, or if the server serves no ranges. Otherwise they come in any order, and
    /// several connections may call `take` at the same time.
    ///
    /// @param take Function that takes a piece. If it throws, the operation ends with the same exception.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// errc::wrong_checksum, after `take` has received all bytes.
    [[nodiscard]] asio::awaitable<void> async_fetch_pieces(piece_consumer take);

    /// @brief Closes the connections that `fetch_options::keep_connections` has left open.
    ///
    /// Other objects can then use the session's flows. The next async_fetch() connects again. For a file the call does
    /// nothing.
    ///
    /// @pre No operation is pending.
    ///
    /// @par Thread safety
    /// Safe from any thread.
    void disconnect() noexcept;

    /// @brief Returns the whole object's CRC32C if it was computed.
    ///
    /// It is computed only once all of the object was placed.
    [[nodiscard]] std::optional<std::uint32_t> crc32c() const noexcept;
    /// @brief Returns the whole object's CRC-64/NVME if it was computed.
    ///
    /// It is computed only once all of the object was placed.
    [[nodiscard]] std::optional<std::uint64_t> crc64nvme() const noexcept;

    /// @brief Returns the counters. The requests of a file are its reads.
    ///
    /// rx_session::stats() also counts bytes of incomplete responses.
    ///
    /// @par Thread safety
    /// Safe from any thread.
    [[nodiscard]] fetch_stats stats() const noexcept;
    /// @brief Returns counters of each URL.
    ///
    /// The object's own URL comes first, then those of `fetch_options::mirrors`.
    ///
    /// With `s3_options::more_endpoints` each URL has counters for each server. A file has none.
    ///
    /// @par Thread safety
    /// Safe from any thread.
    [[nodiscard]] std::vector<mirror_stats> mirrors() const;

  private:
    std::unique_ptr<detail::source> source_;
};

/// @brief A file that async_list_files() found.
struct listed_file {
    std::string name;                   ///< Path below the directory.
    std::optional<std::uint64_t> size;  ///< Size in bytes; empty if the list does not state it.
    std::string etag;                   ///< ETag; empty if the list does not state it.
};

/// @brief The files of a directory, ordered by name.
struct file_list {
    /// @brief Directory with a slash at the end. A name behind it is the path or URL of that file.
    ///
    /// For a model of the hub, it has the commit that the revision had. All files are then of one commit.
    std::string directory;
    std::vector<listed_file> files;  ///< The files.
};

/// @brief Lists the files of a directory.
///
/// The operation needs no session: it uses its own connections on the host. It leaves out objects and files with names
/// that lead elsewhere, such as those with "..".
///
/// @param directory Path of a directory, `s3://BUCKET/DIRECTORY/`, likewise of gs, or
///   `hf://ORG/MODEL@REVISION/DIRECTORY/`. A missing slash at the end is added.
/// @param recursive Whether the list includes the files of directories below it.
/// @param options Options. For s3 and gs as in async_list_s3(). For the hub `attempts`, `deadline`, `timeout`, `tls`,
///   `headers`, `bearer` and `credentials` apply.
/// @returns The files.
/// @throws system_error See Errors.
///
/// @par Executor
/// The coroutine's.
///
/// @par Per-operation cancellation
/// Terminal. The operation waits for an unfinished read of a directory on disk.
///
/// @par Errors
/// - The errors of async_list_s3(). errc::bad_url also for http and https, whose servers have no list.
/// - For a directory on disk, the system's errors.
[[nodiscard]] asio::awaitable<file_list> async_list_files(std::string directory, bool recursive = false,
                                                          fetch_options options = {});

}  // namespace gpurx::ingest
