// SPDX-License-Identifier: Apache-2.0
//
// Requests for an object, and checks that a response matches its request. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <gpurx/error.hpp>

#include "../net/message.hpp"
#include "../net/url.hpp"
#include "../s3/location.hpp"

namespace gpurx::ingest::detail {

// Returns a GET request, for a range unless it is empty. `wants_checksum`: asks S3 to send checksums, unless the URL's
// signature forbids it. `more`: fields that authenticate the request. They override fields of the same name.
[[nodiscard]] header_fields get_fields(url const& from, byte_range range, bool wants_checksum);
[[nodiscard]] std::string get_request(url const& from, byte_range range, bool wants_checksum,
                                      header_fields const& more = {});
// A HEAD request with the same fields.
[[nodiscard]] std::string head_request(url const& from, bool wants_checksum, header_fields const& more = {});
// Returns whether a server may have refused a request because it asked for checksums; `body` is the beginning of the
// response's body.
[[nodiscard]] bool may_refuse_checksum_mode(answer const& head, std::string_view body);

// The object that a download began with.
struct object_identity {
    std::uint64_t size = 0;
    std::string etag;
    std::string last_modified;
};

// Parses the first response: the object, and the range of the bytes that follow. `asked`: requested bytes. Errors:
// http_status, unknown_size, wrong_range, bad_response; `why` has the reason.
struct first_answer {
    object_identity object;
    byte_range follows;
    bool serves_ranges = false;
};
[[nodiscard]] first_answer understand_first(answer const& head, byte_range asked, error_code& code, std::string& why);

// The known properties of an opened object.
struct opened_object {
    object_identity object;
    bool serves_ranges = false;
    std::optional<std::uint32_t> crc32c;  // of the whole object, from the server
    std::optional<std::uint64_t> crc64nvme;
};

// Returns the reason why the object of another server is not the same; empty if it is. Both must have the same size and
// the same checksum of the whole. If no checksum of both is known, they must have the same ETag, which must not be
// weak.
[[nodiscard]] std::string what_differs(opened_object const& one, opened_object const& other);

// Returns the range of the bytes of a later response. Errors: as above, and object_changed.
[[nodiscard]] byte_range understand(answer const& head, byte_range asked, object_identity const& object,
                                    error_code& code, std::string& why);

// Returns the text of a status that is not a success; `body` is the beginning of the response's body. `advice` replaces
// the usual one, unless it is empty.
[[nodiscard]] std::string refusal_text(answer const& head, std::string_view body, std::string_view advice = {},
                                       s3::store of = s3::store::aws);

}  // namespace gpurx::ingest::detail
