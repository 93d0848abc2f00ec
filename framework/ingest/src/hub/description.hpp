// SPDX-License-Identifier: Apache-2.0
//
// The hub's description of a model: the commit of a revision, and its files.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/http.hpp>

#include "location.hpp"

namespace gpurx::ingest::detail::hub {

struct description {
    std::string commit;
    std::vector<std::string> files;  // of the whole model, in the hub's order
};

// Pure. Empty if the text is no description; `why` has the reason.
[[nodiscard]] std::optional<description> parse_description(std::string_view text, std::string& why);

// Asks the hub on connections of the host, as async_list_s3() does. Of the options `attempts`, `deadline`, `timeout`,
// `tls`, `headers` and `bearer` apply. Errors: bad_url, http_status, bad_response, bad_redirect, gave_up, and those of
// resolving and connecting.
[[nodiscard]] asio::awaitable<description> async_describe(location which, fetch_options options);

}  // namespace gpurx::ingest::detail::hub
