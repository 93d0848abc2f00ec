// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <functional>
#include <gpurx/ingest/http.hpp>
#include <stdexcept>

namespace gpurx::ingest {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

fetch_options with(std::function<void(fetch_options&)> const& change)
{
    fetch_options options;
    change(options);
    return options;
}

}  // namespace

TEST_CASE("fetch_options: valid fields pass")
{
    CHECK_NOTHROW(check({}));
    CHECK_NOTHROW(check(with([](fetch_options& options) {
        options.headers = {{"X-Model", "a b"}, {"Authorization", "Basic eDp5"}};
        options.bearer = "token";
        options.tls.certificate = "both.pem";
        options.s3.endpoint = "https://storage:9000/";
        options.s3.region = "eu-west-1";
    })));
}

TEST_CASE("fetch_options: an invalid field is named, without its secret")
{
    struct refused {
        std::function<void(fetch_options&)> change;
        char const* says;
    };
    for (auto const& [change, says] : {
             refused{[](auto& options) {
                         options.headers = {{"X-Key", "secret\r\nHost: x"}};
                     },
                     "header \"X-Key\""},
             refused{[](auto& options) {
                         options.headers = {{"range", "secret"}};
                     },
                     "header \"range\""},
             refused{[](auto& options) {
                         options.headers = {{"X Key", "secret"}};
                     },
                     "header \"X Key\""},
             refused{[](auto& options) { options.bearer = "secret\n"; }, "the bearer token"},
             refused{[](auto& options) { options.tls.key = "key.pem"; }, "a key for TLS"},
             refused{[](auto& options) { options.flows = 0; }, "at least 1"},
         })
        CHECK_THROWS_MATCHES(check(with(change)), std::invalid_argument,
                             MessageMatches(ContainsSubstring(says) && !ContainsSubstring("secret")));
    for (auto const& [change, says] : {
             refused{[](auto& options) { options.s3.endpoint = "storage:9000"; }, "storage:9000"},
             refused{[](auto& options) { options.s3.region = "Frankfurt am Main"; },
                     "the region \"Frankfurt am Main\""},
         })
        CHECK_THROWS_MATCHES(check(with(change)), system_error, MessageMatches(ContainsSubstring(says)));
}

}  // namespace gpurx::ingest
