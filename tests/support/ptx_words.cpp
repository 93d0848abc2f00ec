// SPDX-License-Identifier: Apache-2.0
#include "ptx_words.hpp"

#include <algorithm>
#include <charconv>

#include "ptx_module.hpp"

namespace ptx::inside {

void refuse(unsigned line, std::string const& what)
{
    throw parse_error{"PTX line " + std::to_string(line) + ": " + what};
}

namespace {

bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
           c == '.' || c == '%';
}

}  // namespace

std::vector<reader::token> reader::split(std::string_view text)
{
    std::vector<token> tokens;
    unsigned line = 1;
    for (std::size_t at = 0; at < text.size();) {
        auto const rest = text.substr(at);
        auto length = std::size_t{1};
        if (rest.starts_with("//")) {
            length = std::min(rest.find('\n'), rest.size());
        } else if (rest.starts_with("/*")) {
            length = std::min(rest.find("*/"), rest.size() - 2) + 2;
        } else if (is_word(rest.front())) {
            // "L1::no_allocate" is one word.
            while (length < rest.size() &&
                   (is_word(rest[length]) || rest.substr(length, 2) == "::" || rest.substr(length - 1, 2) == "::"))
                ++length;
            tokens.push_back({rest.substr(0, length), line});
        } else if (rest.front() == '"') {
            length = std::min(rest.find('"', 1), rest.size() - 1) + 1;
        } else if (std::string_view{" \t\r\n\0", 5}.find(rest.front()) == std::string_view::npos) {
            tokens.push_back({rest.substr(0, 1), line});
        }
        line += static_cast<unsigned>(std::ranges::count(rest.substr(0, length), '\n'));
        at += length;
    }
    return tokens;
}

std::optional<std::uint64_t> number_in(std::string_view word)
{
    auto base = 10;
    if (word.starts_with("0x") || word.starts_with("0X")) {
        base = 16;
        word.remove_prefix(2);
    }
    if (word.ends_with('U'))
        word.remove_suffix(1);
    std::uint64_t value = 0;
    auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
    if (error != std::errc{} || end != word.data() + word.size() || word.empty())
        return std::nullopt;
    return value;
}

reader::reader(std::string_view text) : tokens_{split(text)} {}

unsigned reader::line() const
{
    return tokens_.empty() ? 1 : tokens_[std::min(at_, tokens_.size() - 1)].line;
}

std::string_view reader::next(std::size_t ahead) const
{
    return at_ + ahead < tokens_.size() ? tokens_[at_ + ahead].text : std::string_view{};
}

std::string_view reader::take()
{
    if (done())
        refuse(line(), "the text ends too early");
    return tokens_[at_++].text;
}

bool reader::take_if(std::string_view what)
{
    auto const there = next() == what;
    at_ += there ? 1 : 0;
    return there;
}

void reader::expect(std::string_view what)
{
    if (!take_if(what))
        refuse(line(), "'" + std::string{what} + "' expected before '" + std::string{next()} + "'");
}

std::uint64_t reader::number()
{
    auto const negative = take_if("-");
    auto const word = take();
    auto const value = number_in(word);
    if (!value)
        refuse(line(), "a number expected instead of '" + std::string{word} + "'");
    return negative ? 0 - *value : *value;
}

std::optional<type_info> type_of(std::string_view name)
{
    if (name == "pred")
        return type_info{0, false};
    auto const bits = name.size() < 2 ? std::nullopt : number_in(name.substr(1));
    if (!bits || (name[0] != 'b' && name[0] != 'u' && name[0] != 's') ||
        (*bits != 8 && *bits != 16 && *bits != 32 && *bits != 64))
        return std::nullopt;
    return type_info{static_cast<unsigned>(*bits / 8), name[0] == 's'};
}

std::vector<std::string_view> parts_of(std::string_view mnemonic)
{
    std::vector<std::string_view> parts;
    for (;;) {
        auto const dot = mnemonic.find('.');
        parts.push_back(mnemonic.substr(0, dot));
        if (dot == std::string_view::npos)
            return parts;
        mnemonic.remove_prefix(dot + 1);
    }
}

}  // namespace ptx::inside
