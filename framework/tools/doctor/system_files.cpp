// SPDX-License-Identifier: Apache-2.0
#include "system_files.hpp"

#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <memory>

namespace gpurx::doctor {

namespace {

// "0000:3b:00.0", also with a domain of more digits.
bool is_address(std::string_view word)
{
    constexpr std::size_t shortest = 12;
    if (word.size() < shortest)
        return false;
    auto const tail = word.substr(word.size() - 8);
    return tail[0] == ':' && tail[3] == ':' && tail[6] == '.';
}

std::uint32_t number_at(std::string_view bytes, std::size_t offset)
{
    std::uint32_t value = 0;
    for (std::size_t i = 4; i-- > 0;)
        value = value << 8 | static_cast<std::uint8_t>(bytes[offset + i]);
    return value;
}

}  // namespace

std::vector<std::string> pci_addresses(std::string_view path)
{
    std::vector<std::string> found;
    while (!path.empty()) {
        auto const word = path.substr(0, path.find('/'));
        path.remove_prefix(std::min(path.size(), word.size() + 1));
        if (is_address(word))
            found.emplace_back(word);
    }
    return found;
}

std::optional<bool> redirects_peers(std::string_view config)
{
    // PCI Express Base Specification: the list of extended capabilities begins at 256; access control is number 13.
    constexpr std::size_t first = 0x100;
    constexpr std::uint32_t access_control = 0x0d;
    constexpr std::size_t control = 6;  // of the capability
    constexpr unsigned request_redirect = 1U << 2;
    constexpr unsigned completion_redirect = 1U << 3;
    std::size_t at = first;
    for (unsigned steps = 0; steps < 64 && at >= first && at + 8 <= config.size(); ++steps) {
        auto const header = number_at(config, at);
        if ((header & 0xffff) == access_control) {
            auto const bits = static_cast<std::uint8_t>(config[at + control]);
            return (bits & (request_redirect | completion_redirect)) != 0;
        }
        at = header >> 20;
    }
    return std::nullopt;
}

std::optional<std::uint64_t> region_size(std::string_view resource, unsigned number)
{
    for (unsigned line = 0; line < number; ++line) {
        auto const end = resource.find('\n');
        if (end == std::string_view::npos)
            return std::nullopt;
        resource.remove_prefix(end + 1);
    }
    // "0xSTART 0xEND 0xFLAGS"
    std::uint64_t bounds[2]{};
    for (auto& bound : bounds) {
        if (!resource.starts_with("0x"))
            return std::nullopt;
        auto const* const begin = resource.data() + 2;
        auto const [stopped, error] = std::from_chars(begin, resource.data() + resource.size(), bound, 16);
        if (error != std::errc{} || stopped == resource.data() + resource.size())
            return std::nullopt;
        resource.remove_prefix(static_cast<std::size_t>(stopped - resource.data()) + 1);
    }
    if (bounds[1] <= bounds[0])
        return std::nullopt;
    return bounds[1] - bounds[0] + 1;
}

pci_route route_between(pci_facts const& one, pci_facts const& other)
{
    auto const [here, there] =
        std::mismatch(one.bridges.begin(), one.bridges.end(), other.bridges.begin(), other.bridges.end());
    pci_route route{{here, one.bridges.end()}, here != one.bridges.begin()};
    route.between.insert(route.between.end(), there, other.bridges.end());
    return route;
}

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
