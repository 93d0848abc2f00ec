// SPDX-License-Identifier: Apache-2.0
//
// Bytes on the host that go with a memory: pinned where the memory is a GPU's.
#pragma once

#include <cstddef>
#include <memory>

namespace gpurx::detail {

class memory_state;

struct host_bytes_deleter {
    memory_state* pinned_by = nullptr;  // null: of the heap

    void operator()(std::byte* bytes) const noexcept;
};
using host_bytes = std::unique_ptr<std::byte[], host_bytes_deleter>;

}  // namespace gpurx::detail
