// SPDX-License-Identifier: Apache-2.0
//
// What this process finds around it: variables and small files.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace gpurx::ingest::detail {

// A variable of the environment; empty as well as absent: it is not set. What decides by variables takes this.
using environment = std::function<std::string(std::string_view)>;

// The process's own.
[[nodiscard]] std::string variable(std::string_view name);
// Empty if it cannot be read.
[[nodiscard]] std::string content_of(std::string const& path);

}  // namespace gpurx::ingest::detail
