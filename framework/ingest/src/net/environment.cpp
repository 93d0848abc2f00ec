// SPDX-License-Identifier: Apache-2.0
#include "environment.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace gpurx::ingest::detail {

std::string variable(std::string_view name)
{
    // NOLINTNEXTLINE(concurrency-mt-unsafe): a program that changes its environment while threads run has lost already
    auto const* const value = std::getenv(std::string{name}.c_str());
    return value == nullptr ? std::string{} : value;
}

std::string content_of(std::string const& path)
try {
    std::ifstream file{path, std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
} catch (std::ios_base::failure const&) {
    return {};  // a directory can be opened, and not be read
}

}  // namespace gpurx::ingest::detail
