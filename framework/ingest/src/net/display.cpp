// SPDX-License-Identifier: Apache-2.0
#include "display.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/url/parse.hpp>

namespace gpurx::ingest::detail {

namespace {

constexpr std::size_t shown_of_url = 2000;
// Behind it stands a name: no character of it separates a query or a user.
constexpr std::string_view literal_scheme = "s3://";
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

// Of what is no URL all before the last '@' may be a password.
std::string without_user(std::string_view url)
{
    std::string rest{url};
    auto const parsed = boost::urls::parse_uri_reference({url.data(), url.size()});
    if (parsed && parsed->has_userinfo()) {
        auto const user = parsed->encoded_userinfo();
        rest.erase(static_cast<std::size_t>(user.data() - url.data()), user.size() + 1);
    } else if (auto const at = url.rfind('@'); !parsed && at != std::string_view::npos) {
        auto const scheme = url.substr(0, at).find("://");
        auto const begin = scheme == std::string_view::npos ? 0 : scheme + 3;
        rest.erase(begin, at + 1 - begin);
    }
    return rest;
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
    if (url.starts_with(literal_scheme))
        return printable(url, shown_of_url);
    auto const rest = without_user(url);
    std::string_view const seen{rest};
    auto const front = seen.substr(0, seen.find('#'));
    auto const question = front.find('?');
    std::string shown{front.substr(0, question)};
    if (question != std::string_view::npos)
        shown.append(1, '?').append(shown_query(front.substr(question + 1)));
    return printable(shown, shown_of_url);
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
