// SPDX-License-Identifier: Apache-2.0
#include "ptx_image.hpp"

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>

namespace ptx {

namespace {

// In front of all of it, and of each part. Of all of it: a magic number, and the header's size in the upper half of
// `second`. Of a part: what it is in the lower half of `first`, and the header's size in `second`.
struct header {
    std::uint32_t first;
    std::uint32_t second;
    std::uint64_t bytes;  // that follow it
};
constexpr std::uint32_t magic = 0xba55ed50;
constexpr std::uint16_t text_kind = 1;

std::optional<header> header_of(std::span<std::byte const> from)
{
    header found{};
    if (from.size() < sizeof found)
        return std::nullopt;
    std::memcpy(&found, from.data(), sizeof found);
    return found;
}

// What follows a header of `size` bytes; nothing if not all of it is there.
std::optional<std::span<std::byte const>> body_of(header const& of, std::size_t size, std::span<std::byte const> from)
{
    if (size < sizeof of || size > from.size() || of.bytes > from.size() - size)
        return std::nullopt;
    return from.subspan(size, of.bytes);
}

// The least GPU that it is for; 0 for something else: compressed, it does not say so in words.
unsigned target_of(std::string_view text)
{
    constexpr std::string_view key{".target sm_"};
    unsigned number = 0;
    if (auto const at = text.find(key); at != std::string_view::npos)
        std::from_chars(text.data() + at + key.size(), text.data() + text.size(), number);
    return number;
}

}  // namespace

std::size_t size_of_image(void const* fat_binary)
{
    header all{};
    // Something else may be shorter.
    std::memcpy(&all.first, fat_binary, sizeof all.first);
    if (all.first != magic)
        return 0;
    std::memcpy(&all, fat_binary, sizeof all);
    return (all.second >> 16) + all.bytes;
}

std::string_view text_in(std::span<std::byte const> fat_binary, unsigned gpu)
{
    auto const all = header_of(fat_binary);
    if (!all || all->first != magic)
        return {};
    std::string_view best;
    auto rest = body_of(*all, all->second >> 16, fat_binary).value_or(std::span<std::byte const>{});
    while (auto const part = header_of(rest)) {
        auto const body = body_of(*part, part->second, rest);
        if (!body)
            break;
        std::string_view const text{reinterpret_cast<char const*>(body->data()), body->size()};
        auto const target = target_of(text);
        if (static_cast<std::uint16_t>(part->first) == text_kind && target <= gpu && target > target_of(best))
            best = text.substr(0, text.find('\0'));
        rest = rest.subspan(part->second + body->size());
    }
    return best;
}

}  // namespace ptx
