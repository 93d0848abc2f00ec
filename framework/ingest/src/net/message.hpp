// SPDX-License-Identifier: Apache-2.0
//
// Requests and responses of HTTP/1.1 as text: header fields, parts of responses that a download uses, dates. Pure.
#pragma once

#include <boost/asio/buffer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/error.hpp>

#include "../byte_range.hpp"

namespace gpurx::ingest::detail {

struct header_field {
    std::string name;
    std::string value;
};
using header_fields = std::vector<header_field>;

// The parser refuses larger headers, because it reads headers to the host.
inline constexpr std::size_t header_limit = std::size_t{16} << 10;

struct answer {
    unsigned status = 0;
    std::string reason;
    std::optional<std::uint64_t> length;  // Content-Length
    bool chunked = false;
    bool keep_alive = true;  // another request may follow on this connection
    // Content-Range. 206 has the range; 416 and some 206 have no range, or no size.
    std::optional<byte_range> range;
    std::optional<std::uint64_t> total;
    std::string etag;
    std::string last_modified;
    std::string location;
    std::string commit;             // X-Repo-Commit: commit of a hub's repository
    std::string bucket_region;      // x-amz-bucket-region: region of the requested bucket
    std::string error_code;         // x-ms-error-code: reason of a refusal of Azure
    std::string content_encoding;   // other than "identity" and "aws-chunked"
    std::string transfer_encoding;  // likewise; the length is then unknown, or not that of the bytes
    // The pause that the server requests with a refusal.
    std::optional<std::chrono::seconds> retry_after;
    // x-amz-checksum-crc32c, if the server states that it covers the whole object; or that of x-goog-hash.
    std::optional<std::uint32_t> crc32c;
    std::optional<std::uint64_t> crc64nvme;  // the same for x-amz-checksum-crc64nvme

    [[nodiscard]] bool is_redirect() const noexcept
    {
        return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
    }
    // A later attempt may succeed.
    [[nodiscard]] bool is_temporary() const noexcept
    {
        // From 520 on: proxies say that their own server is away or overloaded.
        return status == 408 || status == 425 || status == 429 || status == 500 || (status >= 502 && status <= 504) ||
               (status >= 520 && status <= 524) || status == 529;
    }
};

// If two fields have the same name, sends the one in `more`.
[[nodiscard]] std::string request_text(std::string_view method, std::string_view target, header_fields const& fields,
                                       header_fields const& more);

// Parses a response as it arrives.
class answer_reader {
  public:
    // Is done at the end of the header, whatever its body.
    answer_reader();
    // Also parses the body, with at most this number of bytes: of known length, in chunks, or up to the connection's
    // end.
    explicit answer_reader(std::size_t body_limit);
    answer_reader(answer_reader const&) = delete;
    answer_reader& operator=(answer_reader const&) = delete;
    ~answer_reader();

    [[nodiscard]] bool is_done() const noexcept;
    // Returns the number of bytes taken. `code`: Beast's errors, including need_more.
    [[nodiscard]] std::size_t put(asio::const_buffer bytes, error_code& code);
    // The connection has ended, which also ends a body of unknown length.
    void put_end(error_code& code);
    // Returns the parsed response. `code`: result of the reads. Errors: asio::error::eof; errc::bad_response, with the
    // reason in `why`; errors that are not Beast's.
    [[nodiscard]] answer take(error_code& code, std::string& why) const;
    [[nodiscard]] std::string take_body();

  private:
    struct parser;

    std::unique_ptr<parser> parser_;
};

// Errors: errc::bad_response; `why` has the reason.
[[nodiscard]] answer parse_answer(std::string_view header, error_code& code, std::string& why);

// "it answers 404 Not Found"
[[nodiscard]] std::string status_text(answer const& head);

// Parses the parts of `Content-Range: bytes 0-99/200`, with the unit in any case. Each part may be missing ("*").
// Returns false if the text is not such a field.
[[nodiscard]] bool parse_content_range(std::string_view field, std::optional<byte_range>& range,
                                       std::optional<std::uint64_t>& total) noexcept;

// Parses S3's form: four or eight bytes, highest first, in base64.
[[nodiscard]] std::optional<std::uint32_t> parse_base64_crc(std::string_view field) noexcept;
[[nodiscard]] std::optional<std::uint64_t> parse_base64_crc64(std::string_view field) noexcept;

// Parses "Sun, 06 Nov 1994 08:49:37 GMT", in any locale. It does not accept the two obsolete forms.
[[nodiscard]] std::optional<std::chrono::sys_seconds> parse_http_date(std::string_view field) noexcept;

// Parses Retry-After: seconds, or a date, relative to the server's own Date, or to the local clock if it sends none.
// Never negative.
[[nodiscard]] std::optional<std::chrono::seconds> parse_retry_after(std::string_view field, std::string_view date,
                                                                    std::chrono::sys_seconds now) noexcept;

// Parses RateLimit, with one or several quotas: `"api";r=0;t=100`, or `limit=9, remaining=0, reset=100` of earlier
// drafts. Returns the longest time until a used-up quota is available again.
[[nodiscard]] std::optional<std::chrono::seconds> parse_rate_limit(std::string_view field) noexcept;

}  // namespace gpurx::ingest::detail
