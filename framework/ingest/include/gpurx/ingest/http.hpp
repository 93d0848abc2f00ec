// SPDX-License-Identifier: Apache-2.0
//
// Options and results of fetching objects (gpurx/ingest/object.hpp).
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gpurx/ingest/error.hpp>
#include <gpurx/ingest/s3.hpp>
#include <gpurx/ingest/tls.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest {

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

// Throws what an object of a server would for these, whatever the URL: std::invalid_argument for no flows, attempts or
// chunks of no size, for header fields and tokens that cannot be sent, and for a key without its certificate;
// errc::bad_url for an endpoint or a region of S3 that cannot be one. No message has a header's value or the token. It
// asks nobody, and looks at no file.
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

}  // namespace gpurx::ingest
