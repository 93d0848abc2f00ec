// SPDX-License-Identifier: Apache-2.0
//
// http_object: an object of an HTTP/1.1 server, file server or S3, with TLS or without, received into device memory.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gpurx/ingest/error.hpp>
#include <gpurx/ingest/s3.hpp>
#include <gpurx/ingest/tls.hpp>
#include <gpurx/session.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest {

namespace detail {
class download;
}

struct fetch_options {
    // Connections at a time, each a flow of the session: rx_session_options::max_flows should be no smaller. A server
    // that does not serve ranges is read through one.
    unsigned flows = 4;

    // Bytes of one range request. Each connection has two requests under way, so that the next answer follows the last.
    std::size_t chunk_size = std::size_t{8} << 20;

    // A connection on which nothing arrives for so long is given up, and its rest fetched through a new one; likewise
    // one whose next header has not come whole within it. Noticed an eighth late at most. Time in which arrived bytes
    // wait for the program, or for its GPU's stream, does not count.
    std::chrono::milliseconds timeout{30'000};

    // Bytes per second that the body of an answer has to bring, over `timeout`; a connection that is slower is given up
    // in the same way. 0: any speed will do.
    std::uint64_t min_speed = 1024;

    // More URLs of the same object. Each connection goes to one of them all: to those that fail or are slow go fewer,
    // or none, and what one has not brought another does. They have to have one size, and one checksum of the whole
    // object or, where not both say one, one ETag that is not weak; else the download ends with errc::mirrors_differ.
    // One that refuses is left out, and is no error while another is left; pauses between attempts are made only when
    // all of them fail.
    std::vector<std::string> mirrors{};

    // Connections that async_fetch has no more work for stay open, for the next: one that the server has closed
    // meanwhile is replaced, and is no retry. They count as flows of the session, and hold its memory, until
    // disconnect(), or until the object is destroyed; those of https do not.
    bool keep_connections = false;

    // How often in a row a connection may fail: all that it was to bring, or 1/64 of a chunk, or 64 KiB, makes up for
    // failures. The pauses between grow from 0.1 to 20 s, so that 12 attempts last for about 75 s: a server that is
    // started anew is waited for. Retry-After is obeyed, up to 5 minutes. A server that has not answered at all gets
    // 5 attempts (1.5 s) at most: the URL is wrong, rather.
    unsigned attempts = 12;

    // For all of it, from async_open on: what is not done then ends with errc::gave_up. 0: it may last for ever. Less:
    // it is over already, and nobody is asked (with_rest_of_deadline).
    std::chrono::milliseconds deadline{0};

    // Compute the CRC32C of all bytes, where they lie, and compare it with the server's if that has sent one
    // (x-amz-checksum-crc32c). automatic: if it has sent one for all of the object; a server of http URLs does so in
    // answers that bring all of it, so for objects of up to chunk_size, and one of s3:// URLs is asked for it. It costs
    // a pass over the bytes, in the destination's memory; on a host's CPU about 0.06 s per GiB. automatic also has the
    // CRC-64/NVME of bytes on the host compared, if that is what the server has (x-amz-checksum-crc64nvme): 0.09 s.
    // It is compared once all bytes have come, by one async_fetch or several, and again with what comes again: all of
    // the object, or as much as an earlier call has brought. (Less than that is not compared: a checksum has no parts.)
    enum class checksum { none, automatic, always };
    checksum crc32c = checksum::automatic;

    // For work on a GPU. One of your own is best: what is enqueued there comes before the bytes,
    // and before the headers.
    cuda_stream_ref stream{};

    // For URLs that begin with s3://.
    s3_options s3{};

    // For https.
    tls_options tls{};

    // For requests to the URL's own host, port and scheme, and to no mirror elsewhere, nor to where a redirect leads:
    // more header fields, and a token (Authorization: Bearer). Who asks is the first of these: an Authorization among
    // the fields, the token, the URL's user and password (Basic), and, over https only, HF_TOKEN for Hugging Face's
    // hosts or HF_ENDPOINT's, and ~/.netrc (or NETRC). Not for s3://.
    std::vector<std::pair<std::string, std::string>> headers{};
    std::string bearer{};
};

// Throws what http_object would for these, whatever the URL: std::invalid_argument for no flows, attempts or chunks of
// no size, for header fields and tokens that cannot be sent, and for a key without its certificate; errc::bad_url for
// an endpoint or a region of S3 that cannot be one. No message has a header's value or the token. It asks nobody, and
// looks at no file.
void check(fetch_options const& options);

// For the next of several operations that have one deadline between them: what is left of it now, if it has run since
// `began`; less than 0 if nothing is. Pure.
[[nodiscard]] fetch_options with_rest_of_deadline(fetch_options options, std::chrono::steady_clock::time_point began);

// A URL as messages show it: without a user's name and password, and of a query only the names. Pure.
[[nodiscard]] std::string redacted_url(std::string_view url);
// What somebody else has written, the name of a tensor say, as messages show it: control characters and bytes that are
// no UTF-8 as \x1b, which a terminal does not obey; white space as one space; of more than 2,000 bytes the beginning.
// Pure.
[[nodiscard]] std::string printable_text(std::string_view text);

// The objects whose URLs begin with `prefix`, s3://BUCKET/BEGINNING, in the order of their keys. A million at most.
// It asks on the host, over connections of its own: no session is needed. Of the options hold attempts, deadline, s3
// and tls; proxies are those of the environment.
//
// Executor: the coroutine's. Cancellation: terminal. Errors: exceptions of type gpurx::system_error that name the
// prefix: errc::bad_url, no_credentials, http_status, bad_response, gave_up, what resolving and connecting report.
[[nodiscard]] asio::awaitable<std::vector<s3_object>> async_list_s3(std::string prefix, fetch_options options = {});

// Bytes [offset, offset + destination.size()) of the object belong there.
struct placement {
    std::uint64_t offset = 0;
    memory_span destination;
};

// Takes bytes of the object, of which the first stands there in it. They lie in host memory until it is done. It runs
// on the strand of the connection that brought them.
using piece_consumer = std::function<asio::awaitable<void>(std::uint64_t offset, std::span<std::byte const> bytes)>;

struct fetch_stats {
    std::uint64_t requests = 0;      // sent
    std::uint64_t connections = 0;   // made
    std::uint64_t retries = 0;       // connections that failed or were refused for the moment, and were replaced
    std::uint64_t redirects = 0;     // followed
    std::uint64_t bytes_placed = 0;  // that have reached their destination, or the host
};

// Of one of the URLs of an object.
struct mirror_stats {
    std::string url;                 // as it was given, without secrets; " at ENDPOINT" behind it: of more_endpoints
    std::uint64_t bytes_placed = 0;  // that it has brought
    std::string failure;             // why it is not asked any more, in words; empty: it is
};

// How it works: the first request asks for the first chunk, so that its answer brings the size along and no
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
// What was served and is refused later (400, 401, 403) is looked for again behind the URL that was given, as a signed
// URL that a redirect has led to, or credentials, end after a while: once, and once more when bytes have come since. It
// has to be the same object: its size, and its ETag, or date where it has none.
//
// Servers: HTTP/1.1 with Content-Length. Ranges are used where they are served. Objects of S3 are s3://BUCKET/KEY, each
// request signed (gpurx/ingest/s3.hpp), or http and https URLs, public or pre-signed. Redirects are followed, but from
// https to http. Not: compressed answers, Transfer-Encoding: chunked, HTTP/2.
//
// Executor: the one given; each connection has a strand of its own on it, so with several threads they run at the same
// time. Per-operation cancellation: terminal; the object can only be destroyed then. Thread safety: one operation at a
// time; stats() at any time. Errors: exceptions of type gpurx::system_error that name the URL: errc of
// gpurx/ingest/error.hpp, what resolving and connecting report, what async_read reports.
//
// Lifetime: the session must outlive the object, and the object its operations.
class http_object {
  public:
    // Errors: errc::bad_url, and those of check(options).
    http_object(asio::any_io_executor executor, rx_session& session, std::string_view url, fetch_options options = {});
    http_object(http_object&&) noexcept;
    http_object& operator=(http_object&&) noexcept;
    ~http_object();

    // Connects, follows redirects, and reads the header of the first answer.
    [[nodiscard]] asio::awaitable<void> async_open();

    // ---- once it is open ----

    [[nodiscard]] std::uint64_t size() const noexcept;
    // As the server wrote it, quotes included; empty: it has none.
    [[nodiscard]] std::string const& etag() const noexcept;
    // The one that redirects have led to, with the secrets that it may have; messages are without them.
    [[nodiscard]] std::string const& url() const noexcept;
    [[nodiscard]] bool serves_ranges() const noexcept;
    // Of the whole object, as the server says.
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
    // async_fetch connects anew. From any thread, but not while an operation is going on.
    void disconnect() noexcept;

    // Of the whole object, if it was computed: then all of it was placed.
    [[nodiscard]] std::optional<std::uint32_t> crc32c() const noexcept;
    [[nodiscard]] std::optional<std::uint64_t> crc64nvme() const noexcept;

    // From any thread. (Bytes of answers that are not complete yet are counted in rx_session::stats().)
    [[nodiscard]] fetch_stats stats() const noexcept;
    // The URL's own, and those of fetch_options::mirrors, each at s3_options::more_endpoints too. From any thread.
    [[nodiscard]] std::vector<mirror_stats> mirrors() const;

  private:
    std::unique_ptr<detail::download> download_;
};

}  // namespace gpurx::ingest
