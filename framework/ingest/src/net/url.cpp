// SPDX-License-Identifier: Apache-2.0
#include "url.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/predicate.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/rfc/pchars.hpp>
#include <boost/url/url.hpp>
#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest::detail {

namespace {

constexpr unsigned redirect_limit = 10;
constexpr std::size_t shown_of_url = 2000;
constexpr std::array<std::string_view, 4> literal_schemes{"s3://", "gs://", "az://", "hf://"};
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

namespace urls = boost::urls;

// Other characters of a name, which may be written as %0D, would end a line of a request, or a C string of OpenSSL's.
bool is_host(urls::url_view const& parsed)
{
    auto const is_address = parsed.host_type() == urls::host_type::ipv6;
    return std::ranges::all_of(parsed.host_address(), [is_address](char each) {
        auto const is_plain = (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') ||
                              (each >= '0' && each <= '9') || each == '.' || each == '-' || each == '_';
        return is_plain || (is_address && each == ':');
    });
}

char const* what_is_wrong(urls::url_view const& parsed)
{
    if (parsed.scheme_id() != urls::scheme::http && parsed.scheme_id() != urls::scheme::https)
        return "the URL must begin with http:// or https:// or s3:// or gs:// or az:// or hf://";
    if (parsed.host_address().empty())
        return "the URL has no host";
    if (!is_host(parsed))
        return "a host name consists of letters, digits, '-', '.' and '_'; write an IPv6 address in brackets";
    if (parsed.has_port() && (parsed.port_number() == 0 || parsed.port().empty()))
        return "the port must be a number from 1 to 65535";
    return nullptr;
}

url taken_apart(urls::url_view const& parsed)
{
    auto const secure = parsed.scheme_id() == urls::scheme::https;
    std::string target = parsed.encoded_path().empty() ? "/" : std::string{parsed.encoded_path()};
    if (parsed.has_query())
        target.append(1, '?').append(parsed.encoded_query());
    return {.text = std::string{parsed.buffer()},
            .display = without_secrets({parsed.buffer().data(), parsed.buffer().size()}),
            .host = parsed.host_address(),
            .port = parsed.has_port() ? std::string{parsed.port()}
                    : secure          ? "443"
                                      : "80",
            .authority = std::string{parsed.encoded_host_and_port()},
            .target = std::move(target),
            .secure = secure,
            .user = parsed.has_userinfo() ? parsed.user() + ":" + parsed.password() : std::string{}};
}

url usable(urls::url_view const& parsed, errc if_not, error_code& code, diagnostics& why)
{
    if (auto const* const wrong = what_is_wrong(parsed)) {
        code = if_not;
        why.advice = wrong;
        return {};
    }
    code.clear();
    return taken_apart(parsed);
}

bool is_hex(char each) noexcept
{
    return (each >= '0' && each <= '9') || (each >= 'a' && each <= 'f') || (each >= 'A' && each <= 'F');
}

// Where path, query and fragment begin, of a URL or a reference.
std::size_t begin_of_path(std::string_view text)
{
    auto const path = std::min(text.find_first_of("/?#"), text.size());
    auto const has_host = text.substr(path).starts_with("//") && (path == 0 || text[path - 1] == ':');
    return has_host ? std::min(text.find_first_of("/?#", path + 2), text.size()) : 0;
}

// Blanks and control characters of a URL stay, and are refused: it is a part of another text.
enum class blanks { stay, are_encoded };

// Percent-encodes what RFC 3986 does not allow in a path or a query, such as [ ] { } | and letters outside ASCII.
std::string with_escapes(std::string_view text, blanks of_it)
{
    auto const path = begin_of_path(text);
    std::string result{text.substr(0, path)};
    for (auto i = path; i < text.size(); ++i) {
        auto const byte = static_cast<unsigned char>(text[i]);
        auto const is_escape = text[i] == '%' && i + 2 < text.size() && is_hex(text[i + 1]) && is_hex(text[i + 2]);
        auto const is_blank = byte < 0x20 || byte == 0x7f || (byte == ' ' && of_it == blanks::stay);
        if (is_escape || is_blank || text[i] == '/' || text[i] == '?' || text[i] == '#' || urls::pchars(text[i]))
            result += text[i];
        else
            result += fmt::format("%{:02X}", byte);
    }
    return result;
}

constexpr std::string_view file_scheme = "file:";

char lower(char letter) noexcept
{
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

bool is_scheme(std::string_view text) noexcept
{
    return !text.empty() && std::ranges::all_of(text, [](char each) {
        auto const letter = lower(each);
        return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '+' || letter == '-' ||
               letter == '.';
    });
}

bool is_file_url(std::string_view text) noexcept
{
    return text.size() >= file_scheme.size() &&
           std::ranges::equal(text.substr(0, file_scheme.size()), file_scheme, {}, lower);
}

std::string path_in(std::string_view text, std::string& wrong)
{
    auto const escaped = with_escapes(text, blanks::stay);
    auto const parsed = urls::parse_uri(escaped);
    if (!parsed || parsed->encoded_path().empty() || parsed->encoded_path().front() != '/')
        wrong = "write it like file:///directory/name, with other characters as %20";
    else if (!parsed->host().empty() && parsed->host() != "localhost")
        wrong =
            "it names a file of another machine; a path of this machine begins with three slashes: "
            "file:///directory/name";
    else if (parsed->has_query() || parsed->has_fragment())
        wrong = "a file has no query and no fragment; write ? as %3F and # as %23";
    else
        return parsed->path();
    return {};
}

}  // namespace

std::string without_secrets(std::string_view url)
{
    if (is_literal_url(url))
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

bool url::is_signed() const
{
    std::string_view query{target};
    query.remove_prefix(std::min(query.find('?'), query.size()));
    while (!query.empty()) {
        query.remove_prefix(1);
        auto const field = query.substr(0, query.find('&'));
        auto const name = field.substr(0, field.find('='));
        if (boost::algorithm::iequals(name, "sig") || boost::algorithm::iends_with(name, "signature"))
            return true;
        query.remove_prefix(field.size());
    }
    return false;
}

bool url::signs(std::string_view field) const
{
    std::string_view const all{target};
    // Names in lower case, with ';' between them: written as %3B in a query.
    constexpr std::string_view name = "X-Amz-SignedHeaders=";
    auto const begin = all.find(name);
    if (begin == std::string_view::npos)
        return false;
    auto const listed = all.substr(begin + name.size(), all.find('&', begin) - begin - name.size());
    return listed.find(field) != std::string_view::npos;
}

bool is_same_origin(url const& one, url const& other) noexcept
{
    return one.secure == other.secure && one.host == other.host && one.port == other.port;
}

url parse_url(std::string_view text, error_code& code, diagnostics& why)
{
    why = {.operation = "parse", .object = without_secrets(text), .kernel_message = {}, .advice = {}};
    auto const escaped = with_escapes(text, blanks::stay);
    auto const parsed = urls::parse_uri(escaped);
    if (parsed)
        return usable(*parsed, errc::bad_url, code, why);
    code = errc::bad_url;
    why.advice = "write it like http://host:port/path, with other characters as %20";
    return {};
}

url parse_url(std::string_view text)
{
    error_code code;
    diagnostics why;
    auto found = parse_url(text, code, why);
    if (code)
        throw system_error{code, why};
    return found;
}

url follow(url const& from, std::string_view location, error_code& code, diagnostics& why)
{
    why = {.operation = "follow",
           .object = from.display + " -> " + without_secrets(location),
           .kernel_message = {},
           .advice = {}};
    auto const base = urls::parse_uri(from.text);
    auto const escaped = with_escapes(location, blanks::are_encoded);
    auto const reference = urls::parse_uri_reference(escaped);
    urls::url resolved;
    code = errc::bad_redirect;
    if (!base || !reference || !urls::resolve(*base, *reference, resolved))
        return {};
    auto found = usable(resolved, errc::bad_redirect, code, why);
    if (code || (!reference->has_userinfo() && (found.secure || !from.secure)))
        return found;
    code = errc::bad_redirect;
    why.advice = reference->has_userinfo() ? "it contains a user name"
                                           : "it leads from https to http: request the new URL directly";
    return {};
}

url follow(url const& from, std::string_view location, unsigned redirects)
{
    error_code code;
    diagnostics why;
    auto to = follow(from, location, code, why);
    if (!code && redirects > redirect_limit) {
        code = errc::bad_redirect;
        why.advice = fmt::format("more than {} redirects", redirect_limit);
    }
    if (code)
        throw system_error{code, why};
    return to;
}

bool is_literal_url(std::string_view text) noexcept
{
    return std::ranges::any_of(literal_schemes, [text](auto each) { return text.starts_with(each); });
}

bool is_name_below(std::string_view name) noexcept
{
    if (name.empty() || name.front() == '/' || name.find_first_of({"\\\0", 2}) != std::string_view::npos ||
        name.find("://") != std::string_view::npos)
        return false;
    for (;;) {
        auto const slash = name.find('/');
        if (name.substr(0, slash) == "..")
            return false;
        if (slash == std::string_view::npos)
            return true;
        name.remove_prefix(slash + 1);
    }
}

bool is_local(std::string_view text) noexcept
{
    auto const end = text.find("://");
    return is_file_url(text) || end == std::string_view::npos || !is_scheme(text.substr(0, end));
}

std::string parse_path(std::string_view text, error_code& code, diagnostics& why)
{
    why = {.operation = "open", .object = printable(text, 2000), .kernel_message = {}, .advice = {}};
    auto path = is_file_url(text) ? path_in(text, why.advice) : std::string{text};
    if (why.advice.empty() && path.empty())
        why.advice = "it is empty";
    if (why.advice.empty() && path.find('\0') != std::string::npos)
        why.advice = "it contains a zero byte";
    code = why.advice.empty() ? error_code{} : errc::bad_url;
    return code ? std::string{} : path;
}

}  // namespace gpurx::ingest::detail
