// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <boost/asio/buffer.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <functional>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/views.hpp>
#include <limits>
#include <list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace gpurx {

namespace {

namespace asio = boost::asio;

// Whether a host_span can be made from it: T& is an object with a name, T an object about to die.
template <class T>
constexpr bool accepted = std::is_constructible_v<host_span, T>;

}  // namespace

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

TEST_CASE("a host_span of a range names its elements")
{
    std::vector<std::uint16_t> values(7);
    host_span const of_vector{values};
    CHECK(of_vector.data() == reinterpret_cast<std::byte*>(values.data()));
    CHECK(of_vector.size() == 14);

    std::string text(5, ' ');
    CHECK(host_span{text}.data() == reinterpret_cast<std::byte*>(text.data()));
    CHECK(host_span{text}.size() == 5);

    std::array<std::array<std::uint32_t, 3>, 2> nested{};
    CHECK(host_span{nested}.size() == sizeof nested);
    int plain[2][3] = {};
    CHECK(host_span{plain}.size() == sizeof plain);

    // A view of elements may be about to die: they do not die with it.
    host_span const of_view{std::span{values}.subspan(1)};
    CHECK(of_view.data() == reinterpret_cast<std::byte*>(&values[1]));
    CHECK(of_view.size() == 12);
    std::span<std::uint16_t> const constant{values};
    CHECK(host_span{constant}.size() == 14);
}

TEST_CASE("a host_span of an Asio buffer names the buffer's bytes, and not the buffer")
{
    std::vector<std::uint32_t> values(25);
    host_span const of_buffer{asio::buffer(values)};
    CHECK(of_buffer.data() == reinterpret_cast<std::byte*>(values.data()));
    CHECK(of_buffer.size() == 100);

    auto named = asio::buffer(values, 3);
    host_span const of_named{named};
    CHECK(of_named.data() == reinterpret_cast<std::byte*>(values.data()));
    CHECK(of_named.size() == 3);
}

TEST_CASE("types that must not become a view do not")
{
    // Not writable, or not bytes.
    CHECK_FALSE(accepted<int const&>);
    CHECK_FALSE(accepted<std::vector<int> const&>);
    CHECK_FALSE(accepted<std::span<int const>>);
    CHECK_FALSE(accepted<std::span<int const>&>);
    CHECK_FALSE(accepted<std::array<int const, 3>&>);
    CHECK_FALSE(accepted<std::vector<std::string>&>);
    CHECK_FALSE(accepted<std::vector<bool>&>);
    CHECK_FALSE(accepted<std::list<int>&>);

    // About to die with its bytes.
    CHECK_FALSE(accepted<std::vector<int>>);
    CHECK_FALSE(accepted<std::array<int, 3>>);
    CHECK_FALSE(accepted<int>);

    // It says where bytes are: to fill itself would leave it pointing anywhere.
    CHECK_FALSE(accepted<asio::const_buffer&>);
    CHECK_FALSE(accepted<asio::const_buffer>);
    CHECK_FALSE(accepted<std::string_view&>);
    CHECK_FALSE(accepted<memory_span&>);
    CHECK_FALSE(accepted<fragment&>);
    CHECK_FALSE(accepted<cuda_stream_ref&>);
    CHECK_FALSE(accepted<char*&>);
    CHECK_FALSE(accepted<std::nullptr_t&>);
    CHECK_FALSE(accepted<int std::string::*&>);
    CHECK_FALSE(accepted<std::unique_ptr<int>&>);
    CHECK_FALSE(accepted<std::shared_ptr<int>&>);
    CHECK_FALSE(accepted<std::reference_wrapper<int>&>);
    CHECK_FALSE(accepted<std::vector<int>::iterator&>);

    // Many of those are no better than one.
    CHECK_FALSE(accepted<std::vector<asio::mutable_buffer>&>);
    CHECK_FALSE(accepted<std::array<asio::mutable_buffer, 2>&>);
    CHECK_FALSE(accepted<asio::mutable_buffer(&)[2]>);
    CHECK_FALSE(accepted<std::span<host_span>>);
    CHECK_FALSE(accepted<std::vector<host_span>&>);
    CHECK_FALSE(accepted<std::vector<memory_span>&>);
    CHECK_FALSE(accepted<std::span<std::span<int>>>);
    CHECK_FALSE(accepted<std::array<std::array<std::string_view, 2>, 2>&>);
    CHECK_FALSE(accepted<std::vector<char*>&>);
    CHECK_FALSE(accepted<char*(&)[2]>);

    CHECK_FALSE(std::is_constructible_v<cuda_stream_ref, int>);
    CHECK_FALSE(std::is_constructible_v<cuda_stream_ref, std::nullptr_t>);
}

TEST_CASE("parts of a memory_span")
{
    memory_span const all{memory_kind::device, 4096, 100};
    CHECK(all.subspan(10, 20) == memory_span{memory_kind::device, 4106, 20});
    CHECK(all.first(7) == memory_span{memory_kind::device, 4096, 7});
    CHECK(all.subspan(100, 0).empty());
    CHECK(memory_span{}.empty());

    static_assert(memory_span{memory_kind::host, 0, 100}.subspan(10, 20).size() == 20);
    static_assert(!memory_span{memory_kind::host, 0, 100}.try_first(101));
}

TEST_CASE("a part of a memory_span that would end beyond it is refused in every build")
{
    memory_span const all{memory_kind::device, 4096, 100};
    constexpr auto most = std::numeric_limits<std::size_t>::max();
    CHECK_THROWS_AS(all.first(101), std::out_of_range);
    CHECK_THROWS_AS(all.first(most), std::out_of_range);
    CHECK_THROWS_AS(all.subspan(101, 0), std::out_of_range);
    CHECK_THROWS_AS(all.subspan(90, 11), std::out_of_range);
    CHECK_THROWS_AS(all.subspan(90, most), std::out_of_range);
    CHECK_THROWS_AS(memory_span{}.first(1), std::out_of_range);
    CHECK_THROWS_WITH(all.subspan(90, 11), "11 bytes from offset 90 on are not inside a memory_span of 100 bytes");

    CHECK(all.try_first(100) == all);
    CHECK(all.try_subspan(10, 20) == all.subspan(10, 20));
    CHECK_FALSE(all.try_first(101));
    CHECK_FALSE(all.try_subspan(90, 11));
    CHECK_FALSE(all.try_subspan(101, most));
}

}  // namespace gpurx
