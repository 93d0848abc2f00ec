// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstring>
#include <gpurx/ingest/error.hpp>
#include <gpurx/ingest/safetensors.hpp>
#include <span>
#include <stdexcept>
#include <string>

namespace gpurx::ingest {

namespace {

using Catch::Matchers::ContainsSubstring;

safetensors_header parsed(std::string const& json, std::uint64_t data_size)
{
    return parse_safetensors(json, safetensors_prefix + json.size() + data_size);
}

std::string refused(std::string const& json, std::uint64_t data_size)
{
    INFO(json);
    try {
        static_cast<void>(parsed(json, data_size));
    } catch (system_error const& error) {
        CHECK(error.code() == errc::bad_safetensors);
        return error.what();
    }
    FAIL("it was accepted");
    return {};
}

std::string tensor(std::string const& shape, int begin, int end, char const* type = "F32")
{
    return fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", type, shape, begin, end);
}

}  // namespace

TEST_CASE("a header tells each tensor's type, shape and place, in the file's order")
{
    auto const json = R"({"b":)" + tensor("[2,3]", 8, 32) + R"(,"__metadata__":{"format":"pt"},"a":)" +
                      tensor("[1]", 0, 8, "I64") + R"(,"empty":)" + tensor("[0,5]", 32, 32, "BF16") + R"(,"scalar":)" +
                      tensor("[]", 32, 33, "BOOL") + "}   ";
    auto const header = parsed(json, 33);
    auto const data = safetensors_prefix + json.size();
    REQUIRE(header.tensors.size() == 4);
    CHECK(header.tensors[0] == safetensor{"a", dtype::i64, {1}, data, 8});
    CHECK(header.tensors[1] == safetensor{"b", dtype::f32, {2, 3}, data + 8, 24});
    CHECK(header.tensors[2] == safetensor{"empty", dtype::bf16, {0, 5}, data + 32, 0});
    CHECK(header.tensors[3] == safetensor{"scalar", dtype::boolean, {}, data + 32, 1});
    CHECK(header.metadata == std::map<std::string, std::string>{{"format", "pt"}});
    CHECK(parsed("{}", 0).tensors.empty());
    CHECK(parsed(R"({"__metadata__":null})", 0).metadata.empty());
    CHECK(parsed(R"({"half":)" + tensor("[2,3]", 0, 3, "F4") + "}", 3).tensors[0].size == 3);
    CHECK(parsed(R"({"none":)" + tensor("[0]", 0, 0, "F4") + "}", 0).tensors[0].size == 0);
}

TEST_CASE("an inconsistent tensor is refused by name")
{
    auto const one = [](std::string const& text) { return R"({"w":)" + text + "}"; };
    CHECK_THAT(refused(one(tensor("[2]", 0, 7)), 7), ContainsSubstring("tensor \"w\"") && ContainsSubstring("8 bytes"));
    CHECK_THAT(refused(one(tensor("[2]", 0, 8)), 7), ContainsSubstring("lie outside the file's 7 bytes"));
    CHECK_THAT(refused(one(tensor("[2]", 8, 0)), 8), ContainsSubstring("lie outside"));
    CHECK_THAT(refused(one(tensor("[2]", 0, 8)), 9), ContainsSubstring("1 bytes at its end belong to no tensor"));
    CHECK_THAT(refused(one(tensor("[2]", 1, 9)), 9), ContainsSubstring("1 bytes before it belong to no tensor"));
    CHECK_THAT(refused(R"({"v":)" + tensor("[2]", 0, 8) + R"(,"w":)" + tensor("[2]", 4, 12) + "}", 12),
               ContainsSubstring("overlap"));
    CHECK_THAT(refused(R"({"v":)" + tensor("[2]", 0, 8) + R"(,"w":)" + tensor("[2]", 0, 8) + "}", 8),
               ContainsSubstring("overlap"));
    CHECK_THAT(refused(R"({"e":)" + tensor("[0]", 4, 4) + R"(,"w":)" + tensor("[2]", 0, 8) + "}", 8),
               ContainsSubstring("overlap"));
    CHECK_THAT(refused(one(tensor("[2]", 0, 8, "F33")), 8), ContainsSubstring("\"F33\" is unknown"));
    CHECK_THAT(refused(one(tensor("[3]", 0, 1, "F4")), 1), ContainsSubstring("not a whole number of bytes"));
    CHECK_THAT(refused(one(tensor("[-2]", 0, 8)), 8), ContainsSubstring("whole numbers"));
    CHECK_THAT(refused(one(tensor("[2.0]", 0, 8)), 8), ContainsSubstring("whole numbers"));
    CHECK_THAT(refused(one(tensor("[1e1]", 0, 40)), 40), ContainsSubstring("whole numbers"));
    CHECK_THAT(refused(one(tensor("[18446744073709551616]", 0, 8)), 8), ContainsSubstring("whole numbers"));
    CHECK_THAT(refused(one(tensor("[4611686018427387904,4]", 0, 0)), 0), ContainsSubstring("64-bit"));
    CHECK_THAT(refused(one(tensor("2", 0, 8)), 8), ContainsSubstring("\"shape\" must be an array"));
    CHECK_THAT(refused(one(R"({"dtype":"F32","shape":[2]})"), 8), ContainsSubstring("\"data_offsets\" is missing"));
    CHECK_THAT(refused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), 8), ContainsSubstring("[begin, end]"));
    CHECK_THAT(refused(one(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"), 8), ContainsSubstring("string"));
    CHECK_THAT(refused(one("[]"), 0), ContainsSubstring("must be an object"));
}

TEST_CASE("a shape that no signed 64-bit number counts is refused with its tensor, also one without elements")
{
    auto const one = [](std::string const& shape, char const* type = "U8") {
        return R"({"w":)" + tensor(shape, 0, 0, type) + "}";
    };
    for (auto const* const shape : {"[18446744073709551615, 0]", "[0, 18446744073709551615]",
                                    "[9223372036854775808, 0]", "[0, 4294967296, 4294967296]"})
        CHECK_THAT(refused(one(shape), 0), ContainsSubstring("tensor \"w\"") &&
                                               ContainsSubstring(fmt::format("shape {}", shape)) &&
                                               ContainsSubstring("64-bit"));
    CHECK_THAT(refused(one("[1152921504606846976, 0]"), 0), ContainsSubstring("64-bit"));
    CHECK(parsed(one("[1152921504606846975, 0]"), 0).tensors[0].shape ==
          std::vector<std::uint64_t>{1152921504606846975, 0});
    CHECK_THAT(refused(one("[1152921504606846975, 0]", "F32"), 0), ContainsSubstring("64-bit"));
}

TEST_CASE("text of a header is shown without control characters")
{
    CHECK_THAT(refused(R"({"\u001b[2J":[]})", 0), ContainsSubstring("tensor \"\\x1b[2J\""));
    CHECK_THAT(refused(R"({"w":{"dtype":"\u0007\u009b"}})", 0), ContainsSubstring("\"\\x07\\xc2\\x9b\""));
    CHECK_THAT(refused("{\"" + std::string(200, 'x') + "\":[]}", 0),
               ContainsSubstring(std::string(100, 'x') + "...\""));
}

TEST_CASE("JSON that is not of the format is refused")
{
    CHECK_THAT(refused("", 0), ContainsSubstring("does not begin with {"));
    CHECK_THAT(refused("[]", 0), ContainsSubstring("does not begin with {"));
    CHECK_THAT(refused(" {}", 0), ContainsSubstring("does not begin with {"));
    CHECK_THAT(refused("{", 0), ContainsSubstring("not JSON"));
    CHECK_THAT(refused("{} x", 0), ContainsSubstring("not JSON"));
    CHECK_THAT(refused("{\"\xff\":1}", 0), ContainsSubstring("not JSON"));
    CHECK_THAT(refused("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}", 0),
               ContainsSubstring("not JSON"));
    CHECK_THAT(refused(R"({"__metadata__":{"a":1}})", 0), ContainsSubstring("__metadata__"));
    CHECK_THAT(refused(R"({"__metadata__":"a"})", 0), ContainsSubstring("__metadata__"));
}

TEST_CASE("a name that comes twice is refused, at every depth and however it is written")
{
    auto const w = tensor("[2]", 0, 8);
    CHECK_THAT(refused(R"({"w":)" + w + R"(,"w":)" + w + "}", 8),
               ContainsSubstring("\"w\": ") && ContainsSubstring("twice"));
    CHECK_THAT(refused(R"({"w":)" + w + R"(,"\u0077":)" + w + "}", 8), ContainsSubstring("twice"));
    CHECK_THAT(refused(R"({"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
               ContainsSubstring("twice"));
    CHECK_THAT(refused(R"({"__metadata__":{"a":"","a":""}})", 0), ContainsSubstring("twice"));
    // The same name in two tensors is none.
    CHECK(parsed(R"({"v":)" + w + R"(,"w":)" + tensor("[2]", 8, 16) + "}", 16).tensors.size() == 2);
}

TEST_CASE("the size of the header has to fit the format and the file")
{
    auto const size_in = [](std::array<unsigned, 8> const& bytes, std::uint64_t file_size) {
        std::array<std::byte, 8> prefix{};
        for (std::size_t i = 0; i < 8; ++i)
            prefix[i] = static_cast<std::byte>(bytes[i]);
        return safetensors_header_size(prefix, file_size);
    };
    CHECK(size_in({2, 1, 0, 0, 0, 0, 0, 0}, 1000) == 258);
    CHECK(size_in({2, 1, 0, 0, 0, 0, 0, 0}, 266) == 258);
    CHECK_THROWS_AS(size_in({2, 1, 0, 0, 0, 0, 0, 0}, 265), system_error);
    CHECK_THROWS_AS(size_in({0, 0, 0, 0, 0, 0, 0, 0}, 7), system_error);
    CHECK(size_in({0, 0xe1, 0xf5, 5, 0, 0, 0, 0}, UINT64_MAX) == 100'000'000);
    CHECK_THROWS_AS(size_in({1, 0xe1, 0xf5, 5, 0, 0, 0, 0}, UINT64_MAX), system_error);
    CHECK_THROWS_AS(size_in({0, 0, 0, 0, 0, 0, 0, 0x80}, UINT64_MAX), system_error);
}

TEST_CASE("a file of another kind is refused by what it is")
{
    auto const said = [](std::string_view begin) -> std::string {
        std::array<std::byte, 8> prefix{};
        std::memcpy(prefix.data(), begin.data(), std::min(begin.size(), prefix.size()));
        try {
            static_cast<void>(safetensors_header_size(prefix, 1 << 20));
        } catch (system_error const& error) {
            CHECK(error.code() == errc::bad_safetensors);
            return error.what();
        }
        return "accepted";
    };
    CHECK_THAT(said("version https://git-lfs.github.com/spec/v1"), ContainsSubstring("Git LFS"));
    CHECK_THAT(said("<!DOCTYPE html>"), ContainsSubstring("HTML page"));
    CHECK_THAT(said("<html lang=en>"), ContainsSubstring("HTML page"));
    CHECK_THAT(said("GGUF\3"), ContainsSubstring("GGUF"));
    CHECK_THAT(said("PK\3\4"), ContainsSubstring("zip"));
    CHECK_THAT(said("\x80\2ctorch"), ContainsSubstring("pickle"));
    CHECK_THAT(said("anything"), ContainsSubstring("is it a safetensors file?"));
}

TEST_CASE("tensors lie as in the file, unless that would misalign them")
{
    std::vector<safetensor> const tensors{
        {"a", dtype::f32, {4}, 1000, 16},  {"b", dtype::f32, {8}, 1016, 32}, {"c", dtype::u8, {3}, 1048, 3},
        {"none", dtype::u8, {0}, 1051, 0}, {"d", dtype::f64, {2}, 1051, 16}, {"e", dtype::f64, {2}, 1067, 16},
    };
    auto const layout = lay_out(tensors);
    CHECK(layout.offsets == std::vector<std::uint64_t>{0, 16, 48, 256, 256, 272});
    CHECK(layout.size == 288);
    auto const block = memory_span{memory_kind::host, 0x10000, layout.size};
    auto const places = placements_of(tensors, layout, block);
    REQUIRE(places.size() == 2);
    CHECK(places[0].offset == 1000);
    CHECK(places[0].destination == block.first(51));
    CHECK(places[1].offset == 1051);
    CHECK(places[1].destination == block.subspan(256, 32));
    CHECK(lay_out({}).size == 0);

    CHECK_THROWS_AS(placements_of(tensors, layout, block.first(287)), std::out_of_range);
    CHECK_THROWS_AS(placements_of(tensors, lay_out(std::span{tensors}.first(2)), block), std::out_of_range);
}

}  // namespace gpurx::ingest
