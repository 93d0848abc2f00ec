// SPDX-License-Identifier: Apache-2.0
#include "url.hpp"

#include <algorithm>
#include <boost/url/parse.hpp>
#include <boost/url/url.hpp>
#include <gpurx/ingest/error.hpp>

#include "display.hpp"

namespace gpurx::ingest::detail {

namespace {

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
        return "the URL has to begin with http:// or https:// or s3://";
    if (parsed.host_address().empty())
        return "the URL names no host";
    if (!is_host(parsed))
        return "a host's name has letters, digits, '-', '.' and '_'; an address of IPv6 stands in brackets";
    if (parsed.has_port() && (parsed.port_number() == 0 || parsed.port().empty()))
        return "the port has to be a number from 1 to 65535";
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

}  // namespace

bool url::allows(std::string_view field) const
{
    std::string_view const all{target};
    if (all.find("X-Amz-Signature=") == std::string_view::npos)
        return true;
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
    auto const parsed = urls::parse_uri({text.data(), text.size()});
    if (parsed)
        return usable(*parsed, errc::bad_url, code, why);
    code = errc::bad_url;
    why.advice = "it has to be like http://host:port/path, other characters written as %20";
    return {};
}

url follow(url const& from, std::string_view location, error_code& code, diagnostics& why)
{
    why = {.operation = "follow",
           .object = from.display + " -> " + without_secrets(location),
           .kernel_message = {},
           .advice = {}};
    auto const base = urls::parse_uri(from.text);
    auto const reference = urls::parse_uri_reference({location.data(), location.size()});
    urls::url resolved;
    code = errc::bad_redirect;
    if (!base || !reference || !urls::resolve(*base, *reference, resolved))
        return {};
    auto found = usable(resolved, errc::bad_redirect, code, why);
    if (code || (!reference->has_userinfo() && (found.secure || !from.secure)))
        return found;
    code = errc::bad_redirect;
    why.advice = reference->has_userinfo() ? "it names a user" : "it leads from https to http: name that yourself";
    return {};
}

}  // namespace gpurx::ingest::detail
