// SPDX-License-Identifier: Apache-2.0
//
// The place of an object, as far as redirects and a bucket's region have led, and the requests for it there: addresses,
// proxy, TLS, credentials. It has no connections: lanes have (lane.hpp). A mirror is an origin and its statements about
// the object.
#pragma once

#include <algorithm>
#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gpurx/ingest/http.hpp>
#include <gpurx/session.hpp>

#include "../net/http_connection.hpp"
#include "../net/message.hpp"
#include "../net/tls.hpp"
#include "../net/url.hpp"
#include "../net/wire.hpp"
#include "../s3/client.hpp"
#include "request.hpp"

namespace gpurx::ingest::detail {

struct http_counters {
    std::atomic<std::uint64_t> requests{0}, connections{0}, retries{0}, redirects{0}, bytes{0};

    [[nodiscard]] fetch_stats read() const noexcept
    {
        return {.requests = requests,
                .connections = connections,
                .retries = retries,
                .redirects = redirects,
                .bytes_placed = bytes};
    }
};

// What all connections of a download have in common.
struct transfer_context {
    rx_session& session;
    fetch_options options;
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
    http_counters counters = {};

    [[nodiscard]] connection_limits limits(speed_check is_outrun) const
    {
        return {options.timeout, options.min_speed, deadline, std::move(is_outrun)};
    }

    // Whether a connection was worth its while: a server that brings a few bytes each time would never be done.
    [[nodiscard]] bool is_progress(std::uint64_t brought) const noexcept
    {
        return brought > 0 && brought >= std::min<std::uint64_t>(options.chunk_size / 64, 64 << 10);
    }
};

// Which of an object's URLs, and at which of the servers with the bucket if it is one of S3; empty: at that of
// s3_options::endpoint.
struct mirror_place {
    std::string url;
    std::string s3_endpoint;
};

// An object of S3, and who asks for it.
struct s3_target {
    s3_target(s3::location which, s3_options at, tls_options tls)
        : object{std::move(which)}, asked{std::move(at), std::move(tls)}
    {}

    s3::location object;
    s3::client asked;
};

// Once it has been opened it moves no more, and may be asked from several strands.
class origin {
  public:
    // Errors: as of object's constructor. The context outlives it.
    // `secrets_for`: the URL that fetch_options::headers and bearer are for; null: this one.
    origin(mirror_place const& place, transfer_context& context, url const* secrets_for = nullptr);

    [[nodiscard]] url const& where() const noexcept { return from_; }
    // As it was given, for messages.
    [[nodiscard]] std::string const& given() const noexcept { return given_; }
    // Finds its addresses, and what TLS needs, unless they are known.
    [[nodiscard]] asio::awaitable<void> async_locate(asio::any_io_executor executor);

    // ---- where it leads; throws where it cannot be followed ----
    void redirect(answer const& head);
    // Whether the bucket is elsewhere, and is now asked for there.
    [[nodiscard]] bool move_to(std::string_view region);
    // Throws what the server says with a status that is no success; `text` is the beginning of its body. The next
    // attempt asks where the bucket is, or as somebody who still may.
    [[noreturn]] void refuse(answer const& head, std::string const& text);

    // ---- once it is located ----
    [[nodiscard]] std::vector<asio::ip::tcp::endpoint> const& endpoints() const noexcept { return endpoints_; }
    [[nodiscard]] std::optional<url> const& proxy() const noexcept { return proxy_; }
    [[nodiscard]] std::unique_ptr<wire> make_wire(asio::any_io_executor const& executor) const;
    // The text of a request for a range; empty: for all of it.
    [[nodiscard]] asio::awaitable<std::string> async_get(byte_range asked);
    // S3 says an object's checksum to who asks for all of it, or for nothing: so HEAD goes ahead of the first GET, once
    // in each region. Empty: that is not for this one.
    [[nodiscard]] std::string ask_for_checksum();

    // ---- what has been learned of the server ----
    // How many requests it answers before it closes a connection, as far as is known. One more must not be under way
    // then: the server would reset the connection, and the end of its last answer be lost.
    std::atomic<std::uint64_t> per_connection{UINT64_MAX};
    // Requests of one connection that are under way together. One, once the server has not answered a second.
    std::atomic<std::size_t> pipelined{2};

  private:
    [[nodiscard]] std::unique_ptr<s3_target> s3_target_of(s3::location which, std::string const& endpoint) const;
    void set_authorization(url const* secrets_for);
    [[nodiscard]] asio::awaitable<void> resolve(asio::any_io_executor executor);
    [[nodiscard]] asio::awaitable<header_fields> authorization(byte_range asked);
    [[nodiscard]] url addressed(header_fields& fields) const;

    transfer_context& context_;
    std::unique_ptr<s3_target> s3_;   // of an s3:// URL
    bool asks_for_checksum_ = false;  // once, of each region
    url from_;
    std::vector<asio::ip::tcp::endpoint> endpoints_;
    std::string given_;
    url first_;          // where it began
    header_fields own_;  // for requests to there
    std::optional<url> proxy_;
    tls_context tls_;  // once it is needed
    unsigned redirects_ = 0;
};

// A server that has an object, and what it has said of it.
struct mirror {
    // `first`: the URL that secrets are for; null: this one.
    mirror(std::size_t number, mirror_place const& place, transfer_context& context, url const* first)
        : index{number}, from{place, context, first}
    {}

    std::size_t index;
    origin from;
    opened_object opened;
    bool asks_for_range = true;  // in its first request
    std::atomic<std::uint64_t> bytes{0};

    // ---- guarded by what it is one of ----
    bool is_open = false;
    std::string failure;  // why it is not asked any more, in words
    // It stands for one that was refused, once that had brought so many bytes.
    std::optional<std::uint64_t> renewed_at;
};

}  // namespace gpurx::ingest::detail
