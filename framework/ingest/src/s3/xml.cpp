// SPDX-License-Identifier: Apache-2.0
#include "xml.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

namespace gpurx::ingest::detail::s3 {

namespace {

constexpr std::string_view blanks = " \t\r\n";
constexpr std::string_view cdata = "<![CDATA[";
constexpr std::array<std::pair<std::string_view, char>, 5> entities{
    {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};
// "#x10FFFF", with some zeros in front.
constexpr std::size_t longest_reference = 16;

bool is_character(std::uint32_t code) noexcept
{
    return code != 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
}

std::string in_utf8(std::uint32_t code)
{
    auto const tail = [code](unsigned shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
    if (code < 0x80)
        return {static_cast<char>(code)};
    if (code < 0x800)
        return {static_cast<char>(0xc0 | (code >> 6)), tail(0)};
    if (code < 0x10000)
        return {static_cast<char>(0xe0 | (code >> 12)), tail(6), tail(0)};
    return {static_cast<char>(0xf0 | (code >> 18)), tail(12), tail(6), tail(0)};
}

// The character of a reference without & and ;. Empty: it is none.
std::string character_of(std::string_view reference)
{
    for (auto const& [name, character] : entities) {
        if (name == reference)
            return {character};
    }
    if (!reference.starts_with('#'))
        return {};
    auto const is_hexadecimal = reference.starts_with("#x");
    auto const digits = reference.substr(is_hexadecimal ? 2 : 1);
    std::uint32_t code = 0;
    auto const* const end = digits.data() + digits.size();
    auto const [stopped, error] = std::from_chars(digits.data(), end, code, is_hexadecimal ? 16 : 10);
    return error == std::errc{} && stopped == end && is_character(code) ? in_utf8(code) : std::string{};
}

// An attribute's value may contain '>'.
std::size_t end_of_tag(std::string_view tag) noexcept
{
    char quote = 0;
    for (std::size_t i = 0; i < tag.size(); ++i) {
        if (quote == 0 && tag[i] == '>')
            return i;
        if (quote == 0 && (tag[i] == '"' || tag[i] == '\''))
            quote = tag[i];
        else if (tag[i] == quote)
            quote = 0;
    }
    return std::string_view::npos;
}

std::string_view local_name(std::string_view tag) noexcept
{
    auto const name = tag.substr(0, tag.find_first_of(" \t\r\n/"));
    return name.substr(name.find(':') + 1);
}

}  // namespace

bool xml_reader::next()
{
    if (std::exchange(at_end_, false))
        leave();
    while (!at_end_ && !rest_.empty()) {
        if (rest_.front() != '<')
            take_text();
        else if (rest_.starts_with(cdata))
            take_cdata();
        else if (rest_.starts_with("<!--"))
            static_cast<void>(take_before("-->"));
        else if (rest_.starts_with("<?"))
            static_cast<void>(take_before("?>"));
        else if (rest_.starts_with("</"))
            take_end();
        else if (rest_.starts_with("<!"))
            stop();  // a document type, which could define entities
        else
            take_start();
    }
    return at_end_;
}

std::string_view xml_reader::take_before(std::string_view end)
{
    auto const at = rest_.find(end);
    auto const taken = rest_.substr(0, at);
    if (at == std::string_view::npos)
        stop();
    else
        rest_.remove_prefix(at + end.size());
    return taken;
}

// What is no reference stays as it is.
void xml_reader::take_text()
{
    auto run = rest_.substr(0, rest_.find('<'));
    rest_.remove_prefix(run.size());
    // Before the root there may be a mark of the byte order.
    if (path_.empty() && run.find_first_not_of(blanks) != std::string_view::npos && run != "\xef\xbb\xbf")
        is_broken_ = true;
    while (!run.empty()) {
        auto const plain = run.substr(0, run.find('&'));
        text_ += plain;
        run.remove_prefix(plain.size());
        if (run.empty())
            break;
        auto const end = run.substr(0, longest_reference).find(';');
        auto const character = end == std::string_view::npos ? std::string{} : character_of(run.substr(1, end - 1));
        text_ += character.empty() ? "&" : character;
        run.remove_prefix(character.empty() ? 1 : end + 1);
    }
}

void xml_reader::take_cdata()
{
    rest_.remove_prefix(cdata.size());
    text_ += take_before("]]>");
}

void xml_reader::take_start()
{
    auto const end = end_of_tag(rest_);
    if (end == std::string_view::npos || has_ended_)
        return stop();
    auto const tag = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    auto const name = local_name(tag);
    if (name.empty())
        return stop();
    path_.append(1, '/').append(name);
    text_.clear();
    attributes_ = tag.substr(std::min(tag.find_first_of(" \t\r\n"), tag.size()));
    at_end_ = tag.ends_with('/');
}

void xml_reader::take_end()
{
    auto const is_cut = rest_.find('>') == std::string_view::npos;
    auto const name = local_name(take_before(">").substr(2));
    at_end_ = !is_cut && !path_.empty() && std::string_view{path_}.substr(path_.rfind('/') + 1) == name;
    if (!at_end_)
        stop();
}

void xml_reader::leave()
{
    path_.erase(path_.rfind('/'));
    text_.clear();
    has_ended_ = path_.empty();
}

void xml_reader::stop() noexcept
{
    rest_ = {};
    is_broken_ = true;
}

}  // namespace gpurx::ingest::detail::s3
