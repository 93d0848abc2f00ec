// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <gpurx/ingest/error.hpp>
#include <string>
#include <string_view>

#include "safetensors/shard_index.hpp"

namespace gpurx::ingest::detail {

namespace {

// Where the index at `where` finds a file of that name; empty: it is refused.
std::string found_beside(std::string_view where, std::string_view name)
try {
    return parse_index(fmt::format(R"({{"weight_map":{{"w":"{}"}}}})", name), where).urls.at(0);
} catch (system_error const& error) {
    CHECK(error.code() == errc::bad_safetensors);
    return {};
}

}  // namespace

TEST_CASE("the files of an index are beside it, their names written as its place has them")
{
    CHECK(found_beside("http://h/m/index.json?token=a", "a b?#%.x") == "http://h/m/a%20b%3F%23%25.x");
    CHECK(found_beside("file:///m/index.json", "a b") == "file:///m/a%20b");
    CHECK(found_beside("/m/index.json", "a b%") == "/m/a b%");
    CHECK(found_beside("s3://bucket/m/index.json", "a b?#%.x") == "s3://bucket/m/a b?#%.x");
    CHECK(found_beside("s3://bucket/what?/m#1/index.json", "a") == "s3://bucket/what?/m#1/a");
}

TEST_CASE("a query goes on to the files of an index only if it opens them, too")
{
    auto const kept = [](std::string const& query) {
        return found_beside("https://h/c/index.json?" + query + "#part", "a") == "https://h/c/a?" + query;
    };
    CHECK(kept("sv=2024-11-04&sr=c&sp=rl&sig=x%2By"));
    CHECK(kept("sr=d&sdd=1&sig=x"));
    CHECK(kept("sv=2024-11-04&ss=b&srt=sco&sig=x"));
    for (auto const* const query : {"sr=b&sig=x", "sr=c", "sr=c&sig=", "srt=s&sig=x", "token=sr=c&sig=x", "version=3",
                                    "X-Amz-Signature=x", "asr=c&sig=x", ""})
        CHECK(found_beside(fmt::format("https://h/c/index.json?{}", query), "a") == "https://h/c/a");
}

TEST_CASE("of a model in two forms one is loaded")
{
    using names = std::vector<std::string>;
    CHECK(files_among({"m/consolidated.safetensors", "m/model.safetensors"}, "m") == names{"m/model.safetensors"});
    CHECK(files_among({"consolidated.safetensors.index.json", "model.safetensors.index.json"}, "m") ==
          names{"model.safetensors.index.json"});
    CHECK(files_among({"consolidated.00.safetensors", "consolidated.01.safetensors"}, "m").size() == 2);
    CHECK(files_among({"consolidated.safetensors", "adapter_model.safetensors"}, "m").size() == 2);
}

TEST_CASE("a file of an index may have two dots in its name, and none of its steps may be that")
{
    for (auto const* const name : {"a..b", "..a", "a../b", "..."})
        CHECK(found_beside("/m/index.json", name) == fmt::format("/m/{}", name));
    for (auto const* const name : {"..", "../a", "a/..", "a/../b", "/a", ""})
        CHECK(found_beside("/m/index.json", name).empty());
}

}  // namespace gpurx::ingest::detail
