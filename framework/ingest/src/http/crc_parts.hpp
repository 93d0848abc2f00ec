// SPDX-License-Identifier: Apache-2.0
//
// The checksum of an object that arrives in parts, in any order: each part's is computed where the part lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <gpurx/memory.hpp>
#include <gpurx/views.hpp>

#include "answer.hpp"

namespace gpurx::ingest::detail {

// Checksums of parts, each joined with its neighbours as it comes: what they take grows with the gaps alone.
template <class Checksum>
class joined_parts {
  public:
    // Precondition: no byte comes twice.
    void add(byte_range bytes, Checksum crc);
    // Empty: the parts are not all of an object of that size.
    [[nodiscard]] std::optional<Checksum> whole(std::uint64_t size) const;
    [[nodiscard]] std::size_t count() const noexcept { return parts_.size(); }

  private:
    struct part {
        std::uint64_t end;
        Checksum crc;
    };

    std::map<std::uint64_t, part> parts_;  // by begin
};

// CRC32C: a GPU writes those of parts that lie there.
class crc_parts {
  public:
    void add(byte_range bytes, std::uint32_t crc) { on_host_.add(bytes, crc); }
    // Where a GPU is to write the CRC32C of these bytes of the object.
    [[nodiscard]] device_span add_on_gpu(byte_range bytes);
    // Whether a GPU writes any: wait for its stream before combine().
    [[nodiscard]] bool on_gpu() const noexcept { return !blocks_.empty(); }
    // Empty: the parts are not all of an object of that size.
    [[nodiscard]] std::optional<std::uint32_t> combine(std::uint64_t size) const;

  private:
    struct gpu_part {
        byte_range bytes;
        std::uint32_t const* crc;
    };

    joined_parts<std::uint32_t> on_host_;
    std::vector<gpu_part> on_gpu_;
    std::vector<device_memory> blocks_;  // pinned, as a GPU writes them
    std::size_t used_ = 0;               // of the last
};

// CRC-64/NVME, of parts on the host: GPUs have no code for it.
using crc64_parts = joined_parts<std::uint64_t>;

}  // namespace gpurx::ingest::detail
