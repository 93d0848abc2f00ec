// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <string>

#include "net/environment.hpp"

namespace gpurx::ingest::detail {

namespace {

using variables = std::map<std::string, std::string, std::less<>>;

environment of(variables set)
{
    return [set = std::move(set)](std::string_view name) {
        auto const found = set.find(name);
        return found == set.end() ? std::string{} : found->second;
    };
}

url parsed(std::string_view text)
{
    error_code code;
    diagnostics why;
    auto result = parse_url(text, code, why);
    REQUIRE_FALSE(code);
    return result;
}

// What Authorization would be.
std::string sent(std::string_view to, variables set = {}, std::string_view netrc = {}, std::string_view bearer = {},
                 header_fields given = {})
{
    auto const fields = authorization_fields(parsed(to), std::move(given), bearer, of(std::move(set)), netrc);
    return fields.empty() ? "" : fields.back().value;
}

constexpr std::string_view netrc = R"(# a comment
machine one login me password "two words"
macdef init
machine other login wrong password wrong

machine other
    login you
    account nothing
    password secret # until here
machine one login second password second
default login anybody password x
)";

}  // namespace

TEST_CASE("netrc has a user for a host, or for all others")
{
    CHECK(find_in_netrc(netrc, "one") == "me:two words");
    CHECK(find_in_netrc(netrc, "OTHER") == "you:secret");
    CHECK(find_in_netrc(netrc, "third") == "anybody:x");
    CHECK(find_in_netrc("machine a login b", "c").empty());
    CHECK(find_in_netrc("machine a login", "a").empty());
    CHECK(find_in_netrc("", "a").empty());
    CHECK(find_in_netrc("machine a password \"unended", "a") == ":unended");
    CHECK(netrc_path(of({{"HOME", "/h"}})) == "/h/.netrc");
    CHECK(netrc_path(of({{"HOME", "/h"}, {"NETRC", "/n"}})) == "/n");
    CHECK(netrc_path(of({})).empty());
}

TEST_CASE("the first source with a credential authenticates the request")
{
    variables const hub{{"HF_TOKEN", "hf_abc"}};
    CHECK(sent("https://one/x", {}, netrc) == "Basic bWU6dHdvIHdvcmRz");
    CHECK(sent("https://a:b@one/x", {}, netrc) == "Basic YTpi");
    CHECK(sent("https://a:b@one/x", {}, netrc, "token") == "Bearer token");
    CHECK(sent("https://one/x", {}, netrc, "token", {{"authorization", "mine"}}) == "mine");
    CHECK(sent("https://huggingface.co/a", hub, netrc) == "Bearer hf_abc");
    CHECK(sent("https://huggingface.co/a", {{"HF_TOKEN_PATH", "/nowhere"}}).empty());
    CHECK(sent("https://huggingface.co.evil.invalid/a", hub).empty());
    CHECK(sent("https://third/a", hub).empty());
    CHECK(sent("https://third:8/a", {{"HF_TOKEN", "t"}, {"HF_ENDPOINT", "https://third:8"}}) == "Bearer t");
    CHECK(sent("https://third:9/a", {{"HF_TOKEN", "t"}, {"HF_ENDPOINT", "https://third:8"}}).empty());
}

TEST_CASE("the hub's token has a file, at the first place that is set")
{
    variables set{{"HOME", "/h"}};
    CHECK(hub_token_path(of(set)) == "/h/.cache/huggingface/token");
    set["XDG_CACHE_HOME"] = "/c";
    CHECK(hub_token_path(of(set)) == "/c/huggingface/token");
    set["HF_HOME"] = "/f";
    CHECK(hub_token_path(of(set)) == "/f/token");
    set["HF_TOKEN_PATH"] = "/t";
    CHECK(hub_token_path(of(set)) == "/t");
    CHECK(hub_token_path(of({})).empty());
}

TEST_CASE("credentials of the environment are not sent unencrypted, nor as two lines")
{
    CHECK(sent("http://one/x", {}, netrc).empty());
    CHECK(sent("http://huggingface.co/a", {{"HF_TOKEN", "t"}}).empty());
    CHECK(sent("http://a:b@one/x") == "Basic YTpi");
    CHECK(sent("https://huggingface.co/a", {{"HF_TOKEN", "t\r\nX: y"}}).empty());
}

TEST_CASE("a field that would be another, or the library's own, is refused")
{
    CHECK(what_is_wrong({"X-Mine", "a b\tc"}) == nullptr);
    for (auto const* name : {"", "a b", "a:", "a\n", "Host", "rANGE", "Content-Length"})
        CHECK(what_is_wrong({name, "x"}) != nullptr);
    CHECK(what_is_wrong({"X", "a\r\nHost: b"}) != nullptr);
    CHECK(what_is_wrong({"X", std::string(1, '\0')}) != nullptr);
}

}  // namespace gpurx::ingest::detail
