// SPDX-License-Identifier: Apache-2.0
//
// The place of an object after redirects and the search for a bucket's region, and the data of requests to it:
// addresses, proxy, TLS, credentials. It has no connections; lanes have them (lane.hpp). A mirror is an origin and its
// statements about the object.
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
#include <mutex>
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

// Common data of all connections of a download.
struct transfer_context {
    rx_session& session;
    fetch_options options;
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
    http_counters counters = {};

    [[nodiscard]] connection_limits limits(speed_check is_outrun) const
    {
        return {options.timeout, options.min_speed, deadline, std::move(is_outrun)};
    }

    // Returns whether a connection has made enough progress. A server that sends a few bytes each time would never
    // finish.
    [[nodiscard]] bool is_progress(std::uint64_t brought) const noexcept
    {
        return brought > 0 && brought >= std::min<std::uint64_t>(options.chunk_size / 64, 64 << 10);
    }
};

// One of an object's URLs and, for S3, one of the servers with the bucket. Empty: that of s3_options::endpoint.
struct mirror_place {
    std::string url;
    std::string s3_endpoint;
};

// An object of S3 or another store, and the credentials of its requests.
struct s3_target {
    s3_target(s3::location which, s3_options at, fetch_options const& options, bool may_know)
        : object{std::move(which)}, asked{std::move(at), options, object, may_know}
    {}

    s3::location object;
    s3::client asked;
};

// After it was opened only its addresses change, and several strands may use it.
class origin {
  public:
    // Errors: those of object's constructor. The context must outlive this.
    // `secrets_for`: the URL to which fetch_options::headers, bearer and credentials belong; null: this one.
    origin(mirror_place const& place, transfer_context& context, url const* secrets_for = nullptr);

    [[nodiscard]] url const& where() const noexcept { return from_; }
    // The URL as given, for messages.
    [[nodiscard]] std::string const& given() const noexcept { return given_; }
    // Finds its server and proxy, resolves the addresses and prepares TLS, unless that was done.
    [[nodiscard]] asio::awaitable<void> async_locate(asio::any_io_executor executor);

    // Returns the commit of the repository, as the first answers state it; empty: none.
    [[nodiscard]] std::string const& commit() const noexcept { return commit_; }
    // Learns it from an answer to the first request, which may redirect to a URL with the commit.
    void learn_commit(answer const& head);

    // ---- redirects; throws if they cannot be followed ----
    void redirect(answer const& head);
    // Returns whether the bucket is in another region. Later requests then go there.
    [[nodiscard]] bool move_to(std::string_view region);
    // Throws the error of a status that is not a success; `text` is the beginning of the body. The next attempt goes to
    // the bucket's region, or has new credentials.
    [[noreturn]] void refuse(answer const& head, std::string const& text);

    // ---- once it is located ----
    // Returns the addresses. Asks for them again after doubt(), because the server may have moved.
    [[nodiscard]] asio::awaitable<std::vector<asio::ip::tcp::endpoint>> async_endpoints(asio::any_io_executor executor);
    // A connection or a request has failed.
    void doubt() noexcept { is_doubtful_ = true; }
    [[nodiscard]] std::optional<url> const& proxy() const noexcept { return proxy_; }
    [[nodiscard]] std::unique_ptr<wire> make_wire(asio::any_io_executor const& executor) const;
    // Returns the text of a request for a range; an empty range means all of the object.
    [[nodiscard]] asio::awaitable<std::string> async_get(byte_range asked);
    // S3 sends an object's checksum only with requests for all or none of its bytes. So a HEAD request precedes the
    // first GET, once in each region: on its connection if pipelined() allows it. Empty if this origin needs none.
    [[nodiscard]] std::string ask_for_checksum();
    // Returns whether a refusal of the first request may be one of the field that asks for checksums. Later requests do
    // not have it. `text` is the beginning of the body.
    [[nodiscard]] bool can_do_without_checksum(answer const& head, std::string_view text);

    // ---- observations of the server ----
    // Number of requests that the server answers before it closes a connection, if known. Do not send more: the server
    // would reset the connection, and the end of its last response would be lost.
    std::atomic<std::uint64_t> per_connection{UINT64_MAX};
    // Most requests in flight on one connection. One, after the server has not answered a second request. The process
    // remembers that for the host.
    [[nodiscard]] std::size_t pipelined() const noexcept { return is_alone_ ? 1 : 2; }
    void ask_alone();

  private:
    [[nodiscard]] std::unique_ptr<s3_target> s3_target_of(s3::location which, std::string const& endpoint,
                                                          bool may_know) const;
    void set_authorization(url const* secrets_for);
    [[nodiscard]] asio::awaitable<std::vector<asio::ip::tcp::endpoint>> resolve(asio::any_io_executor executor) const;
    [[nodiscard]] asio::awaitable<header_fields> authorization(byte_range asked);
    // Returns whether the function that supplies credentials has others than those that the server refused.
    [[nodiscard]] bool end_credentials();
    [[nodiscard]] url addressed(header_fields& fields) const;

    transfer_context& context_;
    std::unique_ptr<s3_target> s3_;   // of an s3://, gs:// or az:// URL
    bool asks_for_checksum_ = false;  // once in each region
    bool wants_checksum_;             // in each request; false once the server has refused that
    url from_;
    std::mutex endpoints_mutex_;
    std::vector<asio::ip::tcp::endpoint> endpoints_;
    std::atomic<bool> is_doubtful_ = false;
    std::atomic<bool> is_alone_ = false;
    std::string given_;
    bool is_hub_ = false;  // Hugging Face's, or a mirror of it
    std::string commit_;
    url first_;          // the first URL
    header_fields own_;  // for requests to it
    std::shared_ptr<credential_source> credentials_;
    std::mutex supplied_mutex_;
    std::optional<request_credentials> supplied_;  // the last; empty: they were refused
    bool has_ended_credentials_ = false;
    std::optional<url> proxy_;
    tls_context tls_;  // set when needed
    unsigned redirects_ = 0;
};

// A server that has an object, and its statements about the object.
struct mirror {
    // `first`: the URL to which secrets belong; null: this one.
    mirror(std::size_t number, mirror_place const& place, transfer_context& context, url const* first)
        : index{number}, from{place, context, first}
    {}

    std::size_t index;
    origin from;
    opened_object opened;
    bool asks_for_range = true;  // in its first request
    answer checksums;            // the answer to HEAD
    std::atomic<std::uint64_t> bytes{0};

    // ---- guarded by the owner's mutex ----
    bool is_open = false;
    std::string failure;  // reason why the library does not use it any more
    // If set, it replaces a refused mirror, which had delivered this number of bytes.
    std::optional<std::uint64_t> renewed_at;
};

}  // namespace gpurx::ingest::detail
