// SPDX-License-Identifier: Apache-2.0
#include "shown.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace gpurx::ingest::detail {

namespace {

constexpr std::array<std::string_view, 3> harmless{"versionId", "partNumber", "download"};

std::string shown_query(std::string_view query)
{
    std::string shown;
    for (;;) {
        auto const field = query.substr(0, query.find('&'));
        auto const name = field.substr(0, field.find('='));
        auto const stays = name.size() == field.size() || std::ranges::find(harmless, name) != harmless.end();
        shown += stays ? std::string{field} : std::string{name} + "=...";
        if (field.size() == query.size())
            return shown;
        shown += '&';
        query.remove_prefix(field.size() + 1);
    }
}

// Spaces too, so that several lines are one.
bool is_space(char byte) noexcept
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

// How many bytes the character at the front of `text` has; 0: it is none that may be shown. Overlong forms and
// surrogates pass: they harm no terminal.
std::size_t shown_length(std::string_view text) noexcept
{
    auto const first = static_cast<unsigned char>(text.front());
    if (first < 0x80)
        return first < 0x20 || first == 0x7f ? 0 : 1;
    auto const length = first >= 0xf5 ? 0U : first >= 0xf0 ? 4U : first >= 0xe0 ? 3U : first >= 0xc2 ? 2U : 0U;
    if (length == 0 || text.size() < length)
        return 0;
    auto const continues = std::ranges::all_of(
        text.substr(1, length - 1), [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80; });
    // U+0080 to U+009F are control characters too.
    if (!continues || (first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0))
        return 0;
    return length;
}

}  // namespace

std::string without_secrets(std::string_view url)
{
    url = url.substr(0, url.find('#'));
    auto const question = url.find('?');
    std::string shown{url.substr(0, question)};
    if (auto const host = shown.find("://"); host != std::string::npos) {
        auto const end = shown.find('/', host + 3);
        if (auto const at = shown.rfind('@', end); at != std::string::npos && at > host)
            shown.erase(host + 3, at - host - 2);
    }
    if (question != std::string_view::npos)
        shown += "?" + shown_query(url.substr(question + 1));
    return printable(shown, 2000);
}

std::string printable(std::string_view text, std::size_t at_most)
{
    std::string shown;
    while (!text.empty()) {
        if (shown.size() >= at_most)
            return shown + "...";
        auto const length = shown_length(text);
        auto const byte = static_cast<unsigned char>(text.front());
        if (is_space(text.front()))
            shown += shown.ends_with(' ') ? "" : " ";
        else if (length > 0)
            shown += text.substr(0, length);
        else
            shown += fmt::format("\\x{:02x}", byte);
        text.remove_prefix(std::max<std::size_t>(length, 1));
    }
    return shown;
}

}  // namespace gpurx::ingest::detail
