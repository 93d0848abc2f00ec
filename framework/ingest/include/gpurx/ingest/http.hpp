// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Options and results of fetching objects (gpurx/ingest/object.hpp).
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gpurx/ingest/credentials.hpp>
#include <gpurx/ingest/error.hpp>
#include <gpurx/ingest/s3.hpp>
#include <gpurx/ingest/tls.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest {

/// @brief Options of fetching an object.
struct fetch_options {
    /// @brief Most connections at a time. Each is a flow of the session.
    ///
    /// `rx_session_options::max_flows` should be at least as large. If a server does not serve ranges, the library uses
    /// one connection.
    unsigned flows = 4;

    /// @brief Bytes of one range request.
    ///
    /// Each connection has two requests in flight, so the next response follows the last one without a pause.
    std::size_t chunk_size = std::size_t{8} << 20;

    /// @brief Time after which a connection without new bytes is replaced.
    ///
    /// A new connection fetches the rest. The library also replaces a connection if the next header does not arrive
    /// completely within this time. It detects the timeout at most an eighth of the time late. Time in which arrived
    /// bytes wait for the program, or for its GPU's stream, does not count.
    std::chrono::milliseconds timeout{30'000};

    /// @brief Least bytes per second of a response's body, averaged over `timeout`. 0: no limit.
    ///
    /// The library replaces a slower connection, as after `timeout`.
    std::uint64_t min_speed = 1024;

    /// @brief More URLs of the same object.
    ///
    /// Each connection goes to one of all URLs. Fewer connections, or none, go to URLs that fail or are slow. If one
    /// URL does not deliver bytes, another URL does.
    ///
    /// All URLs must have the same size and the same checksum of the whole object. If one of two URLs announces no
    /// checksum, both must have the same ETag, and the ETag must not be weak. Otherwise the download fails with
    /// errc::mirrors_differ.
    ///
    /// The download skips a URL that refuses the request. That is not an error while another URL is left. The library
    /// pauses between attempts only when all URLs fail.
    std::vector<std::string> mirrors{};

    /// @brief Whether idle connections stay open for the next async_fetch.
    ///
    /// If the server closes such a connection, the library replaces it and counts no retry. Open connections are flows
    /// of the session and hold its memory, until disconnect() or the object's destruction. Connections of https are not
    /// flows.
    bool keep_connections = false;

    /// @brief Most failures of a connection in a row.
    ///
    /// The count starts again once a connection has delivered all its bytes, 1/64 of a chunk, or 64 KiB. Pauses between
    /// attempts grow from 0.1 to 20 s. 12 attempts last for about 75 s, enough for a server to restart. The library
    /// obeys `Retry-After` and `RateLimit`, up to 5 minutes. A server that has never responded gets at most 5 attempts
    /// (1.5 s), because the URL is probably wrong.
    unsigned attempts = 12;

    /// @brief Time for the whole operation, from async_open() on. 0: no limit.
    ///
    /// An unfinished operation then fails with errc::gave_up. A value below 0 means that the deadline has passed: the
    /// library sends no request (see with_rest_of_deadline()).
    std::chrono::milliseconds deadline{0};

    /// @brief Choice of checksums.
    enum class checksum {
        none,       ///< Compute none, and ask servers for none.
        automatic,  ///< Compute the checksum that the server has announced for the whole object.
        always      ///< Compute the CRC32C, and compare it if the server has announced one.
    };
    /// @brief Checksum of the object that the library computes and compares.
    ///
    /// The library computes it over the bytes at their destination, and compares it with the server's.
    ///
    /// The checksum is the CRC32C (`x-amz-checksum-crc32c`). For bytes on the host, `automatic` also compares the
    /// CRC-64/NVME (`x-amz-checksum-crc64nvme`) if the server announces that one. A server of http URLs sends a
    /// checksum with responses that have the whole object, so for objects of up to `chunk_size`. The library asks
    /// servers of s3:// URLs for it. Google sends the CRC32C of the whole object with each response (`x-goog-hash`).
    /// Azure has no such checksum.
    ///
    /// Requests ask for it by the field `x-amz-checksum-mode`. A request to a signed URL has the field only if the
    /// signature covers it. If a server refuses the first request with status 400 or 501, or as wrongly signed, the
    /// library sends it once more without the field. Later requests do not have it either.
    ///
    /// The library compares when all bytes have arrived, through one async_fetch or several. If bytes are fetched
    /// again, it compares again: for the whole object, or for the same bytes as an earlier call. It does not compare
    /// smaller parts, because the checksum covers the whole.
    ///
    /// @par Cost
    /// One pass over the bytes in the destination's memory. On a host's CPU: about 0.06 s per GiB for the CRC32C, and
    /// 0.09 s for the CRC-64/NVME.
    checksum crc32c = checksum::automatic;

    /// @brief Stream for work on a GPU.
    ///
    /// Bytes and headers wait for work that is already enqueued on the stream. So a separate stream is best.
    ///
    /// Flows enqueue copies on streams beside it (stream_fork). When a fetch ends, also with an error, the stream waits
    /// for all of them.
    cuda_stream_ref stream{};

    /// @brief Options for URLs that begin with `s3://`, `gs://` or `az://`.
    s3_options s3{};

    /// @brief Options for https.
    tls_options tls{};

    /// @brief More header fields of requests to the URL's own host, port and scheme.
    ///
    /// Mirrors with another host, port or scheme do not get them, nor do targets of redirects. Requests to s3://, gs://
    /// and az:// URLs do not have them.
    ///
    /// The first of these that is set authenticates a request:
    /// - `credentials`;
    /// - a field `Authorization` among the header fields;
    /// - `bearer`;
    /// - the URL's user and password (Basic);
    /// - over https only, for Hugging Face's hosts or the host of `HF_ENDPOINT`: `HF_TOKEN`, or the content of the
    ///   first of these files that is set: `HF_TOKEN_PATH`, `$HF_HOME/token`, `$XDG_CACHE_HOME/huggingface/token`,
    ///   `~/.cache/huggingface/token`;
    /// - over https only, `~/.netrc` (or the file that `NETRC` names).
    std::vector<std::pair<std::string, std::string>> headers{};
    /// @brief Token of the same requests: `Authorization: Bearer`. Also for gs:// and az:// URLs, not for s3://.
    std::string bearer{};

    /// @brief Source of the credentials of requests to the URL's own host, port and scheme, and to the target of hf://.
    ///
    /// Mirrors elsewhere and targets of redirects do not get the credentials. For s3://, gs:// and az:// URLs it
    /// replaces all other sources, and mirrors get its credentials if the URL itself has the same scheme, and for az://
    /// the same account. Its header fields replace fields of `headers` with the same name.
    ///
    /// If a server refuses credentials with status 401, or as expired, the library asks the source once more.
    std::shared_ptr<credential_source> credentials{};
    /// @brief Source for s3://, gs:// and az:// URLs if the library finds no credentials itself.
    ///
    /// If it returns none either, the search fails as without it, and requests to Google and Azure are anonymous.
    std::shared_ptr<credential_source> fallback_credentials{};
};

/// @brief Checks options, without requests and without access to files.
///
/// The constructor of an object of a server throws the same exceptions, whatever its URL. No message contains a
/// header's value or the token.
///
/// @throws std::invalid_argument If `flows`, `attempts` or `chunk_size` is 0, if header fields or the token cannot be
///   sent, or if a key has no certificate.
/// @throws system_error errc::bad_url: an endpoint or a region of S3 is invalid.
void check(fetch_options const& options);

/// @brief Returns options for the next of several operations with a shared deadline.
///
/// The function is pure.
///
/// @param options Options with the deadline of all operations.
/// @param began Time at which the deadline began to run.
/// @returns The options with the rest of the deadline; it is below 0 if nothing is left.
[[nodiscard]] fetch_options with_rest_of_deadline(fetch_options options, std::chrono::steady_clock::time_point began);

/// @brief Returns a URL without secrets, for messages.
///
/// The result has no user name and no password, and only the names of a query.
///
/// The function is pure.
[[nodiscard]] std::string redacted_url(std::string_view url);
/// @brief Returns untrusted text, such as a tensor's name, for messages.
///
/// Control characters and bytes that are not UTF-8 appear as escapes such as `\x1b`, which a terminal does not
/// interpret. White space appears as one space. Of text with more than 2,000 bytes, the result has the beginning. The
/// function is pure.
[[nodiscard]] std::string printable_text(std::string_view text);

/// @brief Returns the URL of the same file at a commit of its repository.
///
/// The function is pure.
///
/// @param url A location `hf://ORG/MODEL/FILE`, or a URL with a revision in its path, as in
///   `https://huggingface.co/ORG/MODEL/resolve/REVISION/FILE`.
/// @param commit Commit in hexadecimal, as object::commit() returns it.
/// @returns The URL with the commit as its revision. The URL as it is if it has no revision, or if the text is no
///   commit.
[[nodiscard]] std::string url_at_commit(std::string_view url, std::string_view commit);

/// @brief A file, and the commit that its server states.
struct stated_commit {
    std::string url;     ///< URL of the request.
    std::string commit;  ///< Commit as object::commit() returns it; empty: none.
};
/// @brief Checks that files of the same revision are of the same commit.
///
/// URLs have the same revision if they have the same repository and revision in their paths. URLs without a revision
/// have it if they are in the same directory. The function is pure.
///
/// @throws system_error errc::object_changed: two files are of different commits, or a file is not of the commit in its
///   URL. The diagnostics name both commits.
void check_one_commit(std::span<stated_commit const> files);

/// @brief Lists the objects whose URLs begin with `prefix`, ordered by key.
///
/// The operation needs no session: it uses its own connections on the host. It uses the proxies of the environment, and
/// follows redirects. A list has at most a million objects.
///
/// @param prefix Beginning of the URLs: `s3://BUCKET/BEGINNING`, `gs://BUCKET/BEGINNING` or
///   `az://ACCOUNT/CONTAINER/BEGINNING`. Blobs that stand for directories of Azure are left out.
/// @param options Options. Only `attempts`, `deadline`, `s3`, `tls` and both credentials apply.
/// @returns The objects.
/// @throws system_error See Errors. The diagnostics name the prefix.
///
/// @par Executor
/// The coroutine's.
///
/// @par Per-operation cancellation
/// Terminal.
///
/// @par Errors
/// - errc::bad_url, errc::no_credentials, errc::http_status, errc::bad_response, errc::bad_redirect, errc::gave_up.
/// - The errors of resolving and connecting.
[[nodiscard]] asio::awaitable<std::vector<s3_object>> async_list_s3(std::string prefix, fetch_options options = {});
/// @brief Lists the objects directly below `directory`, ordered by key.
///
/// The server leaves out the objects of directories below it, so the operation needs few requests. Otherwise it is as
/// async_list_s3().
///
/// @param directory Beginning of the URLs: `s3://BUCKET/DIRECTORY/`, or of gs or az. A missing slash is added.
/// @param options Options. Only `attempts`, `deadline`, `s3`, `tls` and both credentials apply.
/// @returns The objects.
/// @throws system_error As async_list_s3().
[[nodiscard]] asio::awaitable<std::vector<s3_object>> async_list_s3_directory(std::string directory,
                                                                              fetch_options options = {});

/// @brief Place of a range of an object: bytes `[offset, offset + destination.size())`.
struct placement {
    std::uint64_t offset = 0;  ///< Offset of the first byte in the object.
    memory_span destination;   ///< Memory for the bytes.
};

/// @brief Function that takes bytes of an object.
///
/// Its first parameter is the offset of the first byte in the object. The bytes are in host memory, and valid until the
/// function completes. The function runs on the strand of the connection that received them.
using piece_consumer = std::function<asio::awaitable<void>(std::uint64_t offset, std::span<std::byte const> bytes)>;

/// @brief Counters of a download.
struct fetch_stats {
    std::uint64_t requests = 0;      ///< Requests sent.
    std::uint64_t connections = 0;   ///< Connections made.
    std::uint64_t retries = 0;       ///< Connections replaced after a failure or a temporary refusal.
    std::uint64_t redirects = 0;     ///< Redirects followed.
    std::uint64_t bytes_placed = 0;  ///< Bytes that have reached their destination, or the host.
};

/// @brief Counters of one of the URLs of an object.
struct mirror_stats {
    /// @brief The URL as given, without secrets.
    ///
    /// For a server of `s3_options::more_endpoints`, " at ENDPOINT" follows.
    std::string url;
    std::uint64_t bytes_placed = 0;  ///< Bytes that this URL has delivered.
    std::string failure;             ///< Reason why the library does not use the URL any more; empty while it does.
};

}  // namespace gpurx::ingest
