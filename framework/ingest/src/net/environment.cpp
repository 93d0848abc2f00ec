// SPDX-License-Identifier: Apache-2.0
#include "environment.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/trim.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <boost/beast/core/string.hpp>
#include <cstdlib>
#include <fstream>
#include <gpurx/ingest/error.hpp>
#include <iterator>
#include <vector>

#include "url.hpp"

namespace gpurx::ingest::detail {

namespace {

// Hosts that the hub's token is for.
constexpr std::array<std::string_view, 2> hugging_face{"huggingface.co", "hf.co"};
// Said by the library itself.
constexpr std::array<std::string_view, 6> reserved{"Host",       "Range",          "Accept-Encoding",
                                                   "Connection", "Content-Length", "Transfer-Encoding"};

bool is_same(std::string_view one, std::string_view other) noexcept
{
    return boost::beast::iequals({one.data(), one.size()}, {other.data(), other.size()});
}

// Words of netrc, in order; one in quotes may have blanks.
class netrc_words {
  public:
    explicit netrc_words(std::string_view text) : rest_{text} {}

    // Empty at the end.
    [[nodiscard]] std::string next()
    {
        for (;;) {
            rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size()));
            if (!rest_.starts_with('#'))
                break;
            rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
        }
        return rest_.starts_with('"') ? quoted() : taken(std::min(rest_.find_first_of(" \t\r\n"), rest_.size()));
    }
    // A macro ends at an empty line.
    void skip_macro() { rest_.remove_prefix(std::min(rest_.find("\n\n"), rest_.size())); }

  private:
    std::string taken(std::size_t size)
    {
        std::string word{rest_.substr(0, size)};
        rest_.remove_prefix(size);
        return word;
    }
    std::string quoted()
    {
        std::string word;
        for (rest_.remove_prefix(1); !rest_.empty() && rest_.front() != '"'; rest_.remove_prefix(1)) {
            if (rest_.front() == '\\' && rest_.size() > 1)
                rest_.remove_prefix(1);
            word += rest_.front();
        }
        rest_.remove_prefix(std::min<std::size_t>(1, rest_.size()));
        return word;
    }

    std::string_view rest_;
};

std::string authorization_for(url const& to, std::string_view bearer, environment const& variable,
                              std::string_view netrc)
{
    if (!bearer.empty())
        return "Bearer " + std::string{bearer};
    if (!to.user.empty())
        return basic_authorization(to.user);
    if (!to.secure)
        return {};
    if (auto const token = is_of_hugging_face(to, variable) ? hub_token(variable) : ""; !token.empty())
        return "Bearer " + token;
    auto const user = find_in_netrc(netrc, to.host);
    return user.empty() ? std::string{} : basic_authorization(user);
}

namespace ip = asio::ip;

// curl's, where a proxy's URL has none.
constexpr std::string_view default_port = "1080";

std::string first_set(environment const& variable, std::initializer_list<std::string_view> names)
{
    for (auto const name : names) {
        if (auto value = variable(name); !value.empty())
            return value;
    }
    return {};
}

bool is_within(ip::address const& address, std::string const& network)
{
    error_code code;
    if (address.is_v4()) {
        auto const of = ip::make_network_v4(network, code);
        return !code && ip::network_v4{address.to_v4(), of.prefix_length()}.canonical() == of.canonical();
    }
    auto const of = ip::make_network_v6(network, code);
    return !code && ip::network_v6{address.to_v6(), of.prefix_length()}.canonical() == of.canonical();
}

bool is_address(std::string_view host, std::string_view entry)
{
    error_code code;
    auto const address = ip::make_address(std::string{host}, code);
    if (code)
        return false;
    if (entry.starts_with('[') && entry.ends_with(']'))
        entry = entry.substr(1, entry.size() - 2);
    auto const other = ip::make_address(std::string{entry}, code);
    return code ? is_within(address, std::string{entry}) : address == other;
}

// The domain itself, or a name below it.
bool is_below(std::string_view host, std::string_view domain)
{
    if (domain.starts_with('.'))
        domain.remove_prefix(1);
    if (domain.empty() || host.size() < domain.size())
        return false;
    auto const tail = host.substr(host.size() - domain.size());
    auto const begins_there = host.size() == domain.size() || host[host.size() - domain.size() - 1] == '.';
    return begins_there && boost::beast::iequals({tail.data(), tail.size()}, {domain.data(), domain.size()});
}

std::string with_brackets(std::string const& host)
{
    return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

}  // namespace

std::string variable(std::string_view name)
{
    // NOLINTNEXTLINE(concurrency-mt-unsafe): a program that changes its environment while threads run has lost already
    auto const* const value = std::getenv(std::string{name}.c_str());
    return value == nullptr ? std::string{} : value;
}

std::string content_of(std::string const& path)
try {
    std::ifstream file{path, std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
} catch (std::ios_base::failure const&) {
    return {};  // a directory can be opened, and not be read
}

std::string in_base64(std::string_view bytes)
{
    std::vector<unsigned char> text((bytes.size() + 2) / 3 * 4 + 1);  // with the NUL that it writes
    auto const size = EVP_EncodeBlock(text.data(), reinterpret_cast<unsigned char const*>(bytes.data()),
                                      static_cast<int>(bytes.size()));
    return {text.begin(), text.begin() + size};
}

std::string basic_authorization(std::string_view user)
{
    return "Basic " + in_base64(user);
}

std::string find_in_netrc(std::string_view netrc, std::string_view host)
{
    netrc_words words{netrc};
    std::string login;
    std::string password;
    bool is_for_host = false;
    for (auto word = words.next(); !word.empty(); word = words.next()) {
        if (word == "machine" || word == "default") {
            // The first that fits counts.
            if (is_for_host)
                break;
            is_for_host = word == "default" || is_same(words.next(), host);
        } else if (word == "macdef") {
            words.skip_macro();
        } else if (word == "login" || word == "password" || word == "account") {
            auto value = words.next();
            if (is_for_host && word != "account")
                (word == "login" ? login : password) = std::move(value);
        }
    }
    return login.empty() && password.empty() ? std::string{} : login + ":" + password;
}

std::string netrc_path(environment const& variable)
{
    auto named = variable("NETRC");
    auto const home = variable("HOME");
    return named.empty() && !home.empty() ? home + "/.netrc" : named;
}

bool is_of_hugging_face(url const& to, environment const& variable)
{
    if (std::ranges::find(hugging_face, to.host) != hugging_face.end())
        return true;
    error_code code;
    diagnostics ignored;
    auto const endpoint = variable("HF_ENDPOINT");
    auto const own = endpoint.empty() ? url{} : parse_url(endpoint, code, ignored);
    return !code && is_same_origin(to, own);
}

std::string hub_token_path(environment const& variable)
{
    if (auto path = variable("HF_TOKEN_PATH"); !path.empty())
        return path;
    if (auto const own = variable("HF_HOME"); !own.empty())
        return own + "/token";
    if (auto const cache = variable("XDG_CACHE_HOME"); !cache.empty())
        return cache + "/huggingface/token";
    auto const home = variable("HOME");
    return home.empty() ? home : home + "/.cache/huggingface/token";
}

std::string hub_token(environment const& variable)
{
    auto token = variable("HF_TOKEN");
    if (token.empty())
        token = content_of(hub_token_path(variable));
    boost::algorithm::trim(token);
    return token;
}

header_fields authorization_fields(url const& to, header_fields given, std::string_view bearer,
                                   environment const& variable, std::string_view netrc)
{
    auto const is_authorization = [](header_field const& each) { return is_same(each.name, "Authorization"); };
    if (std::ranges::any_of(given, is_authorization))
        return given;
    auto value = authorization_for(to, bearer, variable, netrc);
    header_field field{"Authorization", std::move(value)};
    // A line break in a token's file or in netrc must not become a header of its own.
    if (!field.value.empty() && what_is_wrong(field) == nullptr)
        given.push_back(std::move(field));
    return given;
}

char const* what_is_wrong(header_field const& field) noexcept
{
    auto const is_token = [](char each) {
        return each > ' ' && each < 0x7f &&
               std::string_view{"()<>@,;:\\\"/[]?={}"}.find(each) == std::string_view::npos;
    };
    auto const is_control = [](char each) {
        return (static_cast<unsigned char>(each) < ' ' && each != '\t') || each == 0x7f;
    };
    if (field.name.empty() || !std::ranges::all_of(field.name, is_token))
        return "a header's name has letters, digits and '-'";
    if (std::ranges::any_of(field.value, is_control))
        return "a header's value is one line, without control characters";
    if (std::ranges::any_of(reserved, [&](std::string_view each) { return is_same(each, field.name); }))
        return "the library sets Host, Range, Accept-Encoding, Connection and the length of a body itself";
    return nullptr;
}

bool bypasses_proxy(std::string_view host, std::string_view list)
{
    if (list == "*")
        return true;
    while (!list.empty()) {
        auto const entry = list.substr(0, list.find_first_of(", \t"));
        if (is_below(host, entry) || (!entry.empty() && is_address(host, entry)))
            return true;
        list.remove_prefix(std::min(entry.size() + 1, list.size()));
    }
    return false;
}

std::optional<url> proxy_for(url const& to, environment const& variable, error_code& code, diagnostics& why)
{
    code.clear();
    auto text = to.secure ? first_set(variable, {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"})
                          : first_set(variable, {"http_proxy", "all_proxy", "ALL_PROXY"});
    if (text.empty() || bypasses_proxy(to.host, first_set(variable, {"no_proxy", "NO_PROXY"})))
        return std::nullopt;
    if (text.find("://") == std::string::npos)
        text = "http://" + text;
    auto found = parse_url(text, code, why);
    if (!code && found.secure)
        code = errc::bad_url;
    if (code) {
        why = {.operation = "use the proxy",
               .object = without_secrets(text),
               .kernel_message = {},
               .advice =
                   "set a proxy like http://HOST or http://HOST:PORT (https_proxy, http_proxy, all_proxy, no_proxy in "
                   "the environment)"};
        return std::nullopt;
    }
    if (found.authority == with_brackets(found.host))
        found.port = default_port;
    return found;
}

std::optional<url> proxy_for(url const& to)
{
    error_code code;
    diagnostics why;
    auto found = proxy_for(to, variable, code, why);
    if (code)
        throw system_error{code, why};
    return found;
}

header_fields proxy_fields(url const& proxy)
{
    if (proxy.user.empty())
        return {};
    return {{"Proxy-Authorization", basic_authorization(proxy.user)}};
}

url in_absolute_form(url to)
{
    to.target = "http://" + to.authority + to.target;
    return to;
}

std::string connect_request(url const& to, url const& proxy)
{
    auto const where = fmt::format("{}:{}", with_brackets(to.host), to.port);
    return request_text("CONNECT", where, {{"Host", where}, {"User-Agent", "gpurx"}}, proxy_fields(proxy));
}

}  // namespace gpurx::ingest::detail
