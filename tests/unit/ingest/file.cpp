// SPDX-License-Identifier: Apache-2.0
//
// What of loading files is arithmetic and words.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/ingest/error.hpp>

#include "net/url.hpp"
#include "source/fetch_plan.hpp"

namespace gpurx::ingest::detail {

namespace {

using Catch::Matchers::ContainsSubstring;

std::string path_of(std::string_view text)
{
    error_code code;
    diagnostics why;
    auto path = parse_path(text, code, why);
    CHECK_FALSE(code);
    return path;
}

std::string advice_for(std::string_view text)
{
    error_code code;
    diagnostics why;
    CHECK(parse_path(text, code, why).empty());
    CHECK(code == errc::bad_url);
    return why.advice;
}

}  // namespace

TEST_CASE("a text without a scheme is a path, and so are file URLs")
{
    CHECK(is_local("model.safetensors"));
    CHECK(is_local("/data/a://b"));
    CHECK(is_local("C:\\model"));
    CHECK(is_local("FILE:///model"));
    CHECK(is_local(""));
    CHECK_FALSE(is_local("http://host/file"));
    CHECK_FALSE(is_local("s3://bucket/key"));
    CHECK_FALSE(is_local("ftp://host/file"));
}

TEST_CASE("a path is taken as it is, a file URL is decoded")
{
    CHECK(path_of("data/100%25 #1?") == "data/100%25 #1?");
    CHECK(path_of("file:///data/a%20b%3F") == "/data/a b?");
    CHECK(path_of("file://localhost/data/x") == "/data/x");
    CHECK(path_of("File:/data/x") == "/data/x");
}

TEST_CASE("a URL of a file on another machine is refused with a reason")
{
    CHECK_THAT(advice_for(""), ContainsSubstring("empty"));
    CHECK_THAT(advice_for("file://host/data"), ContainsSubstring("another machine"));
    CHECK_THAT(advice_for("file:///data?x=1"), ContainsSubstring("%3F"));
    CHECK_THAT(advice_for("file:///data#x"), ContainsSubstring("%23"));
    CHECK_THAT(advice_for("file:data"), ContainsSubstring("file:///"));
    CHECK_THAT(advice_for("file:///a b"), ContainsSubstring("%20"));
    CHECK_THAT(advice_for("file:///a%00b"), ContainsSubstring("zero byte"));
    CHECK_THAT(advice_for(std::string_view{"a\0b", 3}), ContainsSubstring("zero byte"));
}

TEST_CASE("blocks are whole")
{
    CHECK(blocks_around({0, 1}, 512) == byte_range{0, 512});
    CHECK(blocks_around({511, 513}, 512) == byte_range{0, 1024});
    CHECK(blocks_around({512, 1024}, 512) == byte_range{512, 1024});
    CHECK(blocks_around({7, 9}, 1) == byte_range{7, 9});
}

TEST_CASE("a piece ends with a block, and the rest is left")
{
    fetch_piece piece{.asked = {100, 5000}, .wanted = {{100, 300}, {400, 5000}}};
    CHECK(end_with_block(piece, 4096) == byte_range{4096, 5000});
    CHECK(piece.asked == byte_range{100, 4096});
    CHECK(piece.wanted.back() == byte_range{400, 4096});
    // Nothing would be left of the last range.
    fetch_piece small{.asked = {100, 5000}, .wanted = {{100, 300}, {4500, 5000}}};
    CHECK(end_with_block(small, 4096).empty());
    CHECK(small.asked == byte_range{100, 5000});
}

TEST_CASE("bytes are read to where they belong if memory and file are aligned alike")
{
    read_alignment const needed{.offset = 512, .memory = 4};
    auto const split = split_in_place({500, 2000}, 4096 + 4, needed);
    REQUIRE(split);
    CHECK(split->head == byte_range{500, 512});
    CHECK(split->blocks == byte_range{512, 1536});
    CHECK(split->tail == byte_range{1536, 2000});
    CHECK_FALSE(split_in_place({500, 2000}, 4096 + 5, needed));
    CHECK_FALSE(split_in_place({500, 1000}, 4096 + 4, needed));
    auto const all = split_in_place({5, 7}, 3, {});
    REQUIRE(all);
    CHECK((all->head.empty() && all->tail.empty()));
    CHECK(all->blocks == byte_range{5, 7});
}

}  // namespace gpurx::ingest::detail
