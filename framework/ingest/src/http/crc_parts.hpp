// SPDX-License-Identifier: Apache-2.0
//
// The CRC32C of an object that arrives in parts, in any order: each part's is computed where the part lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include <gpurx/memory.hpp>
#include <gpurx/views.hpp>

#include "answer.hpp"

namespace gpurx::ingest::detail {

class crc_parts {
  public:
    // Where to have the CRC32C written of these bytes of the object, which lie in memory of that kind.
    [[nodiscard]] device_span add(byte_range bytes, memory_kind kind);
    // Whether a GPU writes any: wait for its stream before combine().
    [[nodiscard]] bool on_gpu() const noexcept { return !blocks_.empty(); }
    // Empty: the parts are not all of an object of that size.
    [[nodiscard]] std::optional<std::uint32_t> combine(std::uint64_t size) const;

  private:
    struct part {
        byte_range bytes;
        std::uint32_t const* crc;
    };

    [[nodiscard]] std::uint32_t* slot_for(memory_kind kind);

    std::vector<part> parts_;
    std::deque<std::uint32_t> on_host_;
    std::vector<device_memory> blocks_;  // pinned, as a GPU writes them
    std::size_t used_ = 0;               // of the last
};

}  // namespace gpurx::ingest::detail
