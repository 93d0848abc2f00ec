// SPDX-License-Identifier: Apache-2.0
//
// Which fragments of a receive queue belong to one packet (skb), as the fragments' sizes tell. No I/O.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace bench {

class packet_ends {
  public:
    static constexpr std::size_t most_fragments = 17;  // MAX_SKB_FRAGS

    // `sizes` of all fragments in their order; one of `full` bytes is followed by more of the same packet of the wire.
    // TCP appends what arrives to the last packet of its queue as long as the fragments of both fit into one.
    packet_ends(std::vector<std::uint32_t> const& sizes, std::uint32_t full)
    {
        std::size_t start = 0, length = 0, arriving = 0;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            ++arriving;
            if (sizes[i] == full && i + 1 < sizes.size())
                continue;
            if (length + arriving > most_fragments) {
                start += std::exchange(length, 0);
                ends_.push_back(start);
            }
            length += std::exchange(arriving, 0);
        }
        ends_.push_back(sizes.size());
    }

    // Fragments that are left of the packet at which a call ends that has taken all before `position`; 0 at its end.
    [[nodiscard]] std::size_t left_at(std::size_t position) const
    {
        auto const end = std::lower_bound(ends_.begin(), ends_.end(), position);
        return end == ends_.end() ? 0 : *end - position;
    }
    // Packets whose last fragment is among those from `first` to before `last`.
    [[nodiscard]] std::ptrdiff_t finished(std::size_t first, std::size_t last) const
    {
        return std::upper_bound(ends_.begin(), ends_.end(), last) - std::upper_bound(ends_.begin(), ends_.end(), first);
    }

  private:
    std::vector<std::size_t> ends_;
};

}  // namespace bench
