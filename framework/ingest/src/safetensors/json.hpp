// SPDX-License-Identifier: Apache-2.0
//
// JSON without duplicate names in an object. Boost.JSON accepts duplicates and keeps the last. Pure.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include <gpurx/error.hpp>

namespace gpurx::ingest::detail {

// `twice`: a name that one object has twice; empty if there is none.
[[nodiscard]] boost::json::value parse_json_once(std::string_view text, error_code& code, std::string& twice);

}  // namespace gpurx::ingest::detail
