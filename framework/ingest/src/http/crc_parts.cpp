// SPDX-License-Identifier: Apache-2.0
#include "crc_parts.hpp"

#include <algorithm>
#include <gpurx/gather.hpp>

namespace gpurx::ingest::detail {

namespace {

constexpr std::size_t block_size = 4096;

}  // namespace

device_span crc_parts::add(byte_range bytes, memory_kind kind)
{
    auto* const slot = slot_for(kind);
    parts_.push_back({bytes, slot});
    return {memory_kind::host, reinterpret_cast<std::uintptr_t>(slot), sizeof *slot};
}

std::optional<std::uint32_t> crc_parts::combine(std::uint64_t size) const
{
    auto sorted = parts_;
    std::ranges::sort(sorted, {}, [](part const& each) { return each.bytes.begin; });
    std::uint32_t whole = 0;
    std::uint64_t end = 0;
    for (auto const& each : sorted) {
        if (each.bytes.begin != end)
            return std::nullopt;
        whole = crc32c_combine(whole, *each.crc, each.bytes.size());
        end = each.bytes.end;
    }
    return end == size ? std::optional{whole} : std::nullopt;
}

// Where it is written; stays there.
std::uint32_t* crc_parts::slot_for(memory_kind kind)
{
    if (kind == memory_kind::host)
        return &on_host_.emplace_back();
    if (blocks_.empty() || used_ + sizeof(std::uint32_t) > block_size) {
        blocks_.push_back(device_memory::on_pinned_host(block_size));
        used_ = 0;
    }
    auto const at = blocks_.back().span().address() + used_;
    used_ += sizeof(std::uint32_t);
    return reinterpret_cast<std::uint32_t*>(at);
}

}  // namespace gpurx::ingest::detail
