// SPDX-License-Identifier: Apache-2.0
//
// What is asked of a server, and whether an answer is one to that. Pure.
#pragma once

#include <cstdint>
#include <string>

#include <gpurx/error.hpp>

#include "answer.hpp"
#include "url.hpp"

namespace gpurx::ingest::detail {

// GET, for a range of it unless that is empty.
[[nodiscard]] std::string get_request(url const& from, byte_range range);

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

// Which bytes a later answer brings. Errors: as above, and object_changed.
[[nodiscard]] byte_range understand(answer const& head, byte_range asked, object_identity const& object,
                                    error_code& code, std::string& why);

// "404 Not Found", in words.
[[nodiscard]] std::string status_text(answer const& head);

}  // namespace gpurx::ingest::detail
