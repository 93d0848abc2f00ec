// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <gpurx/ingest/error.hpp>
#include <map>
#include <string>

#include "net/environment.hpp"

namespace gpurx::ingest::detail {

namespace {

using variables = std::map<std::string, std::string, std::less<>>;

url url_of(std::string_view text)
{
    error_code code;
    diagnostics why;
    auto result = parse_url(text, code, why);
    REQUIRE_FALSE(code);
    return result;
}

// host:port of the proxy.
std::string through(std::string_view to, variables const& set)
{
    error_code code;
    diagnostics why;
    auto const variable = [&](std::string_view name) {
        auto const found = set.find(name);
        return found == set.end() ? std::string{} : found->second;
    };
    auto const found = proxy_for(url_of(to), variable, code, why);
    if (code)
        return "error: " + why.object;
    return found ? found->host + ":" + found->port : "nobody";
}

}  // namespace

TEST_CASE("a proxy is taken from the environment, by scheme")
{
    variables const both{{"http_proxy", "http://p:1"}, {"https_proxy", "q:2"}};
    CHECK(through("http://a/b", both) == "p:1");
    CHECK(through("https://a/b", both) == "q:2");
    CHECK(through("http://a/b", {}) == "nobody");
    CHECK(through("http://a/b", {{"HTTP_PROXY", "http://p:1"}}) == "nobody");
    CHECK(through("https://a/b", {{"HTTPS_PROXY", "http://p:1"}}) == "p:1");
    CHECK(through("http://a/b", {{"all_proxy", "p:1"}}) == "p:1");
    CHECK(through("http://a/b", {{"http_proxy", "p"}}) == "p:1080");
    CHECK(through("http://a/b", {{"http_proxy",
                                  "http://"
                                  "me:secret@p:3"}}) == "p:3");
    CHECK(through("http://a/b", {{"http_proxy", "socks5://me:secret@p:3"}}) == "error: socks5://p:3");
    CHECK(through("http://a/b", {{"http_proxy", "https://p:3"}}) == "error: https://p:3");
    CHECK(through("http://a/b", {{"http_proxy", "me:pa/ss@p:3"}}) == "error: http://p:3");
    CHECK(through("http://a/b", {{"http_proxy", "p%0d%0aX:3"}}) ==
          "error: http:"
          "//p%0d%0aX:3");
    CHECK(through("http://a/b", {{"http_proxy", "p:1"}, {"no_proxy", "x,a"}}) == "nobody");
}

TEST_CASE("no_proxy spares names, all below them, addresses and networks")
{
    CHECK(bypasses_proxy("a", "*"));
    CHECK(bypasses_proxy("a.b", "b"));
    CHECK(bypasses_proxy("A.b", ".B"));
    CHECK(bypasses_proxy("a.b", "x, a.b"));
    CHECK_FALSE(bypasses_proxy("aa.b", "a.b"));
    CHECK_FALSE(bypasses_proxy("a.b", "a.b.c"));
    CHECK_FALSE(bypasses_proxy("a", ""));
    CHECK_FALSE(bypasses_proxy("a", ",,."));
    CHECK(bypasses_proxy("10.1.2.3", "10.0.0.0/8"));
    CHECK_FALSE(bypasses_proxy("11.1.2.3", "10.0.0.0/8"));
    CHECK(bypasses_proxy("127.0.0.1", "127.0.0.1"));
    CHECK(bypasses_proxy("fd77::2", "fd77::/16"));
    CHECK(bypasses_proxy("fd77::2", "[fd77:0::2]"));
    CHECK_FALSE(bypasses_proxy("fd77::2", "10.0.0.0/8"));
    CHECK_FALSE(bypasses_proxy("10.1.2.3", "10.0.0.0/99"));
}

TEST_CASE("a request to a proxy has the server's name without its user")
{
    auto const proxy = url_of(
        "http://"
        "me:secret@p:3");
    CHECK(in_absolute_form(url_of("http://"
                                  "u:v@a:8/b?c"))
              .target == "http://a:8/b?c");
    CHECK(connect_request(url_of("https://a/b"), proxy) ==
          "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nUser-Agent: gpurx\r\n"
          "Proxy-Authorization: Basic bWU6c2VjcmV0\r\n\r\n");
    CHECK(connect_request(url_of("https://[fd77::2]:8/b"), url_of("http://p:3")) ==
          "CONNECT [fd77::2]:8 HTTP/1.1\r\nHost: [fd77::2]:8\r\nUser-Agent: gpurx\r\n\r\n");
}

}  // namespace gpurx::ingest::detail
