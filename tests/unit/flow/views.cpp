// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <gpurx/stream.hpp>
#include <span>
#include <tuple>
#include <vector>

namespace gpurx {

TEST_CASE("a host_span names the bytes of what it is made from")
{
    struct header {
        std::uint64_t size;
        std::uint32_t kind;
        std::uint32_t flags;
    } object{};
    host_span const of_object{object};
    CHECK(of_object.data() == reinterpret_cast<std::byte*>(&object));
    CHECK(of_object.size() == 16);

    std::array<std::uint32_t, 3> array{};
    CHECK(host_span{array}.size() == 12);
    int plain[5] = {};
    CHECK(host_span{plain}.size() == sizeof plain);

    std::vector<std::uint16_t> values(7);
    host_span const of_range{std::span{values}};
    CHECK(of_range.data() == reinterpret_cast<std::byte*>(values.data()));
    CHECK(of_range.size() == 14);
    auto range = std::span{values}.first(2);
    CHECK(host_span{range}.size() == 4);

    CHECK(host_span{}.size() == 0);
    CHECK(host_span{reinterpret_cast<std::byte*>(&object), 3}.size() == 3);
}

TEST_CASE("a copy of a host_span names the same bytes, and not the host_span")
{
    std::array<std::byte, 5> bytes{};
    host_span original{bytes};  // not const: its own constructor from any object must not take it
    host_span const copy{original};
    CHECK(copy.data() == bytes.data());
    CHECK(copy.size() == 5);
    std::tuple<host_span> const kept{original};
    CHECK(std::get<0>(kept).data() == bytes.data());
    CHECK(std::get<0>(kept).size() == 5);
}

TEST_CASE("what must not become a view does not")
{
    CHECK_FALSE(std::is_constructible_v<host_span, int const&>);
    CHECK_FALSE(std::is_constructible_v<host_span, char*&>);
    CHECK_FALSE(std::is_constructible_v<host_span, std::vector<int>&>);
    CHECK_FALSE(std::is_constructible_v<host_span, std::span<int const>>);
    CHECK_FALSE(std::is_constructible_v<cuda_stream_ref, int>);
    CHECK_FALSE(std::is_constructible_v<cuda_stream_ref, std::nullptr_t>);
}

TEST_CASE("parts of a device_span")
{
    device_span const all{memory_kind::device, 4096, 100};
    CHECK(all.subspan(10, 20) == device_span{memory_kind::device, 4106, 20});
    CHECK(all.first(7) == device_span{memory_kind::device, 4096, 7});
    CHECK(all.subspan(100, 0).empty());
    CHECK(device_span{}.empty());
}

}  // namespace gpurx
