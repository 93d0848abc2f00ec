// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/ingest/error.hpp>
#include <gpurx/ingest/http.hpp>
#include <string>
#include <vector>

#include "hub/location.hpp"

namespace gpurx::ingest::detail::hub {

namespace {

std::string const one(40, '1');
std::string const two(64, 'f');

location parsed(std::string_view text)
{
    error_code code;
    diagnostics why;
    auto found = parse_location(text, code, why);
    INFO(text << ": " << describe(code, why));
    REQUIRE_FALSE(code);
    return found;
}

std::string commits_differ(std::vector<stated_commit> const& files)
try {
    check_one_commit(files);
    return {};
} catch (system_error const& error) {
    CHECK(error.code() == errc::object_changed);
    return error.what();
}

}  // namespace

TEST_CASE("a location of the hub has a model, a revision and a file")
{
    struct expected {
        std::string_view text;
        std::string_view revision;
        std::string_view file;
        bool is_directory;
    };
    for (auto const& each :
         {expected{"hf://org/model", "main", "", true}, expected{"hf://org/model/", "main", "", true},
          expected{"hf://org/model@v1.0", "v1.0", "", true},
          expected{"hf://org/model@v1/a b?#%.x", "v1", "a b?#%.x", false},
          expected{"hf://org/model/sub/a@b", "main", "sub/a@b", false},
          expected{"hf://org/model@x/sub/", "x", "sub/", true},
          expected{"hf://org/model@refs/pr/1", "refs/pr/1", "", true},
          expected{"hf://org/model@refs/pr/1/a", "refs/pr/1", "a", false},
          expected{"hf://org/model@refs%2fconvert%2Fparquet/a", "refs/convert/parquet", "a", false},
          expected{"hf://org/model@feature%2Fx/a", "feature/x", "a", false}}) {
        INFO(each.text);
        auto const found = parsed(each.text);
        CHECK(found.model == "org/model");
        CHECK(found.revision == each.revision);
        CHECK(found.file == each.file);
        CHECK(is_directory(each.text) == each.is_directory);
    }
    for (auto const* const text :
         {"hf://", "hf://org", "hf://org/", "hf:///model", "hf://org/model@", "hf://org/model@/a", "hf://o rg/model",
          "hf://org/model@a b", "hf://org/model@..", "hf://org/model@x/../y", "hf://org/model//etc",
          "hf://datasets/org/set", "hf://spaces/org/app", "hf://../model", "hf://org/..", "s3://org/model"}) {
        error_code code;
        diagnostics why;
        INFO(text);
        static_cast<void>(parse_location(text, code, why));
        CHECK(code == errc::bad_url);
        CHECK_THAT(why.advice, Catch::Matchers::ContainsSubstring("hf://ORG/MODEL@REVISION/FILE"));
    }
}

TEST_CASE("a file of the hub has a URL at its endpoint")
{
    auto const which = parsed("hf://org/model@refs/pr/1/sub/a b?.x");
    auto const of = [](std::string value) { return [value](std::string_view) { return value; }; };
    CHECK(url_of(which, endpoint(of(""))) == "https://huggingface.co/org/model/resolve/refs%2Fpr%2F1/sub/a%20b%3F.x");
    CHECK(url_of(which, endpoint(of("http://mirror/hf//"))) ==
          "http://mirror/hf/org/model/resolve/refs%2Fpr%2F1/sub/a%20b%3F.x");
    CHECK(description_url_of(which, "http://mirror") == "http://mirror/api/models/org/model/revision/refs%2Fpr%2F1");
}

TEST_CASE("a URL leads to its file at a commit")
{
    auto const at = "https://h/org/model/resolve/" + one;
    CHECK(url_at_commit("https://h/org/model/resolve/main/a/b?download=true#x", one) == at + "/a/b?download=true#x");
    CHECK(url_at_commit("https://h/org/model/resolve/refs%2Fpr%2F1/a", one) == at + "/a");
    CHECK(url_at_commit("https://h/org/model/resolve/refs/pr/1/a", one) == at + "/a");
    CHECK(url_at_commit("hf://org/model@v1/a b", two) == "hf://org/model@" + two + "/a b");
    CHECK(url_at_commit("hf://org/model", one) == "hf://org/model@" + one + "/");
    for (auto const* const text : {"https://h/m/a", "https://h/m?x=/resolve/main/a", "https://h/m/resolve/main", "/m/a",
                                   "s3://bucket/m/a", "hf://org"})
        CHECK(url_at_commit(text, one) == text);
    for (auto const* const commit : {"", "main", "../../../x", "1234567"})
        CHECK(url_at_commit("hf://org/model/a", commit) == "hf://org/model/a");
}

TEST_CASE("files of one revision are of one commit")
{
    std::string const url = "https://h/org/model/resolve/main/";
    CHECK(commits_differ({{url + "a", one}, {url + "b", one}, {url + "c", ""}}).empty());
    CHECK(commits_differ({{url + "a", one}, {"https://h/org/model/resolve/v1/b", two}}).empty());
    CHECK(commits_differ({{url + "a", one}, {"https://h/org/other/resolve/main/b", two}}).empty());
    auto const text = commits_differ({{url + "a?token=x", one}, {url + "sub/b", two}});
    CHECK_THAT(text, Catch::Matchers::ContainsSubstring(one) && Catch::Matchers::ContainsSubstring(two) &&
                         Catch::Matchers::ContainsSubstring(url + "sub/b") &&
                         !Catch::Matchers::ContainsSubstring("=x"));
    CHECK_FALSE(commits_differ({{"https://h/m/a", one}, {"https://h/m/b", two}}).empty());
    CHECK(commits_differ({{"https://h/m/a", one}, {"https://h/n/b", two}}).empty());
    CHECK_FALSE(commits_differ({{"hf://org/model/a", one}, {"hf://org/model@main/b", two}}).empty());
    CHECK_FALSE(commits_differ({{fmt::format("hf://org/model@{}/a", one), two}}).empty());
}

}  // namespace gpurx::ingest::detail::hub
