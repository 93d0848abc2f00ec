// SPDX-License-Identifier: Apache-2.0
#include "xml.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace gpurx::ingest::detail::s3 {

namespace {

constexpr std::array<std::pair<std::string_view, char>, 7> entities{
    {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#34;", '"'}, {"&apos;", '\''}, {"&#39;", '\''}}};

// Where "<NAME>" or "</NAME>" begins.
std::size_t find_tag(std::string_view xml, std::string_view opening, std::string_view name, std::size_t from) noexcept
{
    for (auto at = xml.find(opening, from); at != std::string_view::npos; at = xml.find(opening, at + 1)) {
        auto const rest = xml.substr(at + opening.size());
        if (rest.starts_with(name) && rest.substr(name.size()).starts_with('>'))
            return at;
    }
    return std::string_view::npos;
}

}  // namespace

std::optional<std::string_view> next_element(std::string_view& xml, std::string_view name) noexcept
{
    auto const open = find_tag(xml, "<", name, 0);
    if (open == std::string_view::npos)
        return std::nullopt;
    auto const begin = open + name.size() + 2;
    auto const end = find_tag(xml, "</", name, begin);
    if (end == std::string_view::npos)
        return std::nullopt;
    auto const content = xml.substr(begin, end - begin);
    xml.remove_prefix(end + name.size() + 3);
    return content;
}

std::optional<std::string_view> element(std::string_view xml, std::string_view name) noexcept
{
    return next_element(xml, name);
}

std::string unescaped(std::string_view text)
{
    std::string result;
    while (!text.empty()) {
        auto const* const found = std::ranges::find_if(
            entities, [&](auto const& each) { return text.front() == '&' && text.starts_with(each.first); });
        auto const known = found != entities.end();
        result += known ? found->second : text.front();
        text.remove_prefix(known ? found->first.size() : 1);
    }
    return result;
}

std::string text_of(std::string_view xml, std::string_view name)
{
    return unescaped(element(xml, name).value_or(std::string_view{}));
}

}  // namespace gpurx::ingest::detail::s3
