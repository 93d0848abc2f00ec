// SPDX-License-Identifier: Apache-2.0
//
// Requests for an object, and the check that an answer is one to its request. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <gpurx/error.hpp>

#include "../net/message.hpp"
#include "../net/url.hpp"

namespace gpurx::ingest::detail {

// GET, for a range of it unless that is empty. `more`: what shows who asks, where that has to be known;
// of two of one name that is the one.
[[nodiscard]] header_fields get_fields(url const& from, byte_range range);
[[nodiscard]] std::string get_request(url const& from, byte_range range, header_fields const& more = {});
// HEAD, with the same fields.
[[nodiscard]] std::string head_request(url const& from, header_fields const& more = {});

// The object that a download began with.
struct object_identity {
    std::uint64_t size = 0;
    std::string etag;
    std::string last_modified;
};

// What the first answer says: the object, and which of its bytes follow. `asked` were asked for.
// Errors: http_status, unknown_size, wrong_range, bad_response; `why` says more, in words.
struct first_answer {
    object_identity object;
    byte_range follows;
    bool serves_ranges = false;
};
[[nodiscard]] first_answer understand_first(answer const& head, byte_range asked, error_code& code, std::string& why);

// What is known of an object, once it has been opened.
struct opened_object {
    object_identity object;
    bool serves_ranges = false;
    std::optional<std::uint32_t> crc32c;  // of the whole object, as the server says
    std::optional<std::uint64_t> crc64nvme;
};

// Why the object of another server cannot be taken for this one, in words; empty: it can. They have to have one size,
// and one checksum of the whole or, where no checksum is known of both, one ETag, and that no weak one.
[[nodiscard]] std::string what_differs(opened_object const& one, opened_object const& other);

// Which bytes a later answer brings. Errors: as above, and object_changed.
[[nodiscard]] byte_range understand(answer const& head, byte_range asked, object_identity const& object,
                                    error_code& code, std::string& why);

// What a server says with a status that is no success; `body` is the beginning of its answer's.
[[nodiscard]] std::string refusal_text(answer const& head, std::string_view body);

}  // namespace gpurx::ingest::detail
