// SPDX-License-Identifier: Apache-2.0
//
// Where the tensors of a file lie in memory. Pure.
#include <algorithm>
#include <gpurx/ingest/safetensors.hpp>

namespace gpurx::ingest {

namespace {

// What 128-bit loads, cuBLAS and TMA ask for; element sizes divide it.
constexpr std::uint64_t least_alignment = 16;
// What cudaMalloc gives.
constexpr std::uint64_t fresh_alignment = 256;

}  // namespace

tensor_layout lay_out(std::span<safetensor const> tensors)
{
    tensor_layout layout;
    for (auto const& tensor : tensors) {
        auto at = layout.size;
        if (at % least_alignment != 0)
            at += fresh_alignment - at % fresh_alignment;
        layout.offsets.push_back(at);
        layout.size = at + tensor.size;
    }
    return layout;
}

std::vector<placement> placements_of(std::span<safetensor const> tensors, tensor_layout const& layout,
                                     memory_span block)
{
    std::vector<placement> placements;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        auto const place = block.subspan(layout.offsets.at(i), tensors[i].size);
        if (place.empty())
            continue;
        if (!placements.empty()) {
            auto& last = placements.back();
            auto const size = last.destination.size();
            if (last.offset + size == tensors[i].offset && last.destination.address() + size == place.address()) {
                last.destination = {place.kind(), last.destination.address(), size + place.size()};
                continue;
            }
        }
        placements.push_back({tensors[i].offset, place});
    }
    return placements;
}

}  // namespace gpurx::ingest
