// SPDX-License-Identifier: Apache-2.0
#include "kernel_config.hpp"

#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace gpurx::doctor {

std::map<std::string, std::string> read_kernel_config(std::string_view text, std::span<std::string_view const> wanted)
{
    constexpr std::string_view prefix = "CONFIG_";
    std::map<std::string, std::string> found;
    while (!text.empty()) {
        auto line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        auto const equals = line.find('=');
        if (!line.starts_with(prefix) || equals == std::string_view::npos)
            continue;  // a comment: what is not set stands there
        auto const name = line.substr(prefix.size(), equals - prefix.size());
        if (std::find(wanted.begin(), wanted.end(), name) != wanted.end())
            found.emplace(name, line.substr(equals + 1));
    }
    return found;
}

std::optional<std::string> gunzip(std::string_view packed)
{
    constexpr std::size_t step = 256 << 10;
    constexpr std::size_t most = 16 << 20;
    auto const state = std::make_unique<inflate_state>();  // tens of KiB
    isal_inflate_init(state.get());
    state->crc_flag = ISAL_GZIP;
    std::string bytes{packed};
    state->next_in = reinterpret_cast<std::uint8_t*>(bytes.data());
    state->avail_in = static_cast<std::uint32_t>(bytes.size());

    std::string text;
    while (state->block_state != ISAL_BLOCK_FINISH) {
        auto const size = text.size();
        if (size >= most)
            return std::nullopt;
        text.resize(size + step);
        state->next_out = reinterpret_cast<std::uint8_t*>(text.data() + size);
        state->avail_out = step;
        auto const status = isal_inflate(state.get());
        text.resize(size + step - state->avail_out);
        if (status != ISAL_DECOMP_OK || (text.size() == size && state->block_state != ISAL_BLOCK_FINISH))
            return std::nullopt;
    }
    return text;
}

}  // namespace gpurx::doctor
