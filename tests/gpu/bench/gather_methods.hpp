// SPDX-License-Identifier: Apache-2.0
//
// Ways to bring the fragments of a batch together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gather_work.hpp"

namespace gpurx::bench {

struct method {
    std::string name;
    bool is_rival = true;      // neither the library's nor the copy that all are compared with
    std::string missing = {};  // why it cannot be measured here; empty: it can
    bool few_commands = true;  // so few to a call that a stream can be held while it is filled
    bool contiguous = false;   // copies batch::contiguous instead of the fragments
    std::function<void(batch const&, stream const&)> enqueue = {};
    std::function<std::uint32_t()> crc = {};  // of the batch that was done last
};

// "one copy" (of as many bytes in one piece), "gpurx::gather", "gpurx::gather_crc32c", and rivals.
[[nodiscard]] std::vector<method> all_methods(device const& on);

}  // namespace gpurx::bench
