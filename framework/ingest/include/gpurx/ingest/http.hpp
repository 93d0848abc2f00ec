// SPDX-License-Identifier: Apache-2.0
//
// http_object: an object of an HTTP/1.1 server, file server or S3, received into device memory.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <gpurx/ingest/error.hpp>
#include <gpurx/session.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest {

namespace detail {
class download;
}

struct http_options {
    // Connections at a time, each a flow of the session: rx_session_options::max_flows should be no smaller. A server
    // that does not serve ranges is read through one.
    unsigned flows = 4;

    // Bytes of one range request. Each connection has two requests under way, so that the next answer follows the last.
    std::size_t chunk_size = std::size_t{8} << 20;

    // A connection on which nothing arrives for so long is given up, and its rest fetched through a new one.
    std::chrono::milliseconds timeout{30'000};

    // How often in a row a connection may fail without having brought a byte. The pauses between grow to 2 s.
    unsigned attempts = 5;

    // Compute the CRC32C of all bytes, where they lie, and compare it with the server's if that has sent one
    // (x-amz-checksum-crc32c). automatic: if it has sent one for all of the object; S3 does so in answers that bring
    // all of it, so for objects of up to chunk_size. It costs a pass over the bytes, in the destination's memory; on a
    // host's CPU about 2.4 s per GiB.
    enum class checksum { none, automatic, always };
    checksum crc32c = checksum::automatic;

    // For work on a GPU. One of your own is best: what is enqueued there comes before the bytes,
    // and before the headers.
    cuda_stream_ref stream{};
};

// Bytes [offset, offset + destination.size()) of the object belong there.
struct placement {
    std::uint64_t offset = 0;
    device_span destination;
};

struct http_stats {
    std::uint64_t requests = 0;      // sent
    std::uint64_t connections = 0;   // made
    std::uint64_t retries = 0;       // connections that failed or were refused for the moment, and were replaced
    std::uint64_t redirects = 0;     // followed
    std::uint64_t bytes_placed = 0;  // that have reached their destination, or the host
};

// How it works: the first request asks for the first chunk, so that its answer brings the size along and no
// question is asked for that. Headers are read on the host: the first KiB of what arrives is copied there, 16 KiB
// at most. Bodies go from the connection's pages to their destination directly. What is cut off is fetched again,
// through a new connection, and never twice; the ETag (else the date), the size and the range of every answer have
// to be those of the first.
//
// Servers: HTTP/1.1 with Content-Length. Ranges are used where they are served. URLs of S3 are path-style or virtual
// hosts, public or pre-signed. Redirects are followed within http. Not: https (the payload must be readable where it
// lands), compressed answers, Transfer-Encoding: chunked.
//
// Executor: the one given; each connection has a strand of its own on it, so with several threads they run at the same
// time. Per-operation cancellation: terminal; the object can only be destroyed then. Thread safety: one operation at a
// time; stats() at any time. Errors: exceptions of type gpurx::system_error that name the URL: errc of
// gpurx/ingest/error.hpp, what resolving and connecting report, what async_read reports.
//
// Lifetime: the session must outlive the object, and the object its operations.
class http_object {
  public:
    // Errors: errc::bad_url; std::invalid_argument for no flows or chunks of no size.
    http_object(asio::any_io_executor executor, rx_session& session, std::string_view url, http_options options = {});
    http_object(http_object&&) noexcept;
    http_object& operator=(http_object&&) noexcept;
    ~http_object();

    // Connects, follows redirects, and reads the header of the first answer.
    [[nodiscard]] asio::awaitable<void> async_open();

    // ---- once it is open ----

    [[nodiscard]] std::uint64_t size() const noexcept;
    // As the server wrote it, quotes included; empty: it has none.
    [[nodiscard]] std::string const& etag() const noexcept;
    // The one that redirects have led to.
    [[nodiscard]] std::string const& url() const noexcept;
    [[nodiscard]] bool serves_ranges() const noexcept;
    // Of the whole object, as the server says.
    [[nodiscard]] std::optional<std::uint32_t> announced_crc32c() const noexcept;

    // Reads the next bytes from the front of the object to the host: a file's own header, say. They are on their way
    // since async_open. Errors: asio::error::eof if the object ends before.
    [[nodiscard]] asio::awaitable<void> async_read_front(host_span destination);
    // How many bytes async_read_front has read.
    [[nodiscard]] std::uint64_t front() const noexcept;

    // Brings bytes behind the front to their places, through all connections, in no order; once per object. Bytes
    // without a place are not asked for. On a GPU completion means "enqueued on http_options::stream", as with
    // async_read, but where a checksum is computed, which waits for the stream. Errors: errc::bad_destination if places
    // overlap, begin before the front or end beyond the object; errc::wrong_checksum.
    [[nodiscard]] asio::awaitable<void> async_fetch(std::span<placement const> placements);

    // Of the whole object, if it was computed: then all of it was placed.
    [[nodiscard]] std::optional<std::uint32_t> crc32c() const noexcept;

    // From any thread. (Bytes of answers that are not complete yet are counted in rx_session::stats().)
    [[nodiscard]] http_stats stats() const noexcept;

  private:
    std::unique_ptr<detail::download> download_;
};

}  // namespace gpurx::ingest
