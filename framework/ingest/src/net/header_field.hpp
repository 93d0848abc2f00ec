// SPDX-License-Identifier: Apache-2.0
//
// A line of a header.
#pragma once

#include <string>
#include <vector>

namespace gpurx::ingest::detail {

struct header_field {
    std::string name;
    std::string value;
};
using header_fields = std::vector<header_field>;

}  // namespace gpurx::ingest::detail
