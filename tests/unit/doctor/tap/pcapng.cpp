// SPDX-License-Identifier: Apache-2.0
//
// The blocks, byte by byte, as the draft has them.
#include "tap/pcapng.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstring>

using namespace gpurx::doctor::tap;

namespace {

template <class Number>
Number at(bytes const& file, std::size_t where)
{
    Number value{};
    REQUIRE(where + sizeof value <= file.size());
    std::memcpy(&value, file.data() + where, sizeof value);
    return value;
}

// Both sizes of the only block are the file's.
void check_frame(bytes const& file, std::uint32_t type)
{
    CHECK(at<std::uint32_t>(file, 0) == type);
    CHECK(file.size() % 4 == 0);
    CHECK(at<std::uint32_t>(file, 4) == file.size());
    CHECK(at<std::uint32_t>(file, file.size() - 4) == file.size());
}

}  // namespace

TEST_CASE("the section has the byte order and the writing program", "[tap]")
{
    bytes file;
    put_section(file, "me");
    check_frame(file, 0x0a0d0d0a);
    CHECK(at<std::uint32_t>(file, 8) == 0x1a2b3c4d);
    CHECK(at<std::uint16_t>(file, 12) == 1);
    CHECK(at<std::uint16_t>(file, 14) == 0);
    CHECK(at<std::int64_t>(file, 16) == -1);
    CHECK(at<std::uint16_t>(file, 24) == 4);
    CHECK(at<std::uint16_t>(file, 26) == 2);
    CHECK(at<char>(file, 28) == 'm');
    CHECK(at<std::uint32_t>(file, 32) == 0);
    CHECK(file.size() == 40);
}

TEST_CASE("the interface is Ethernet, in nanoseconds", "[tap]")
{
    bytes file;
    put_interface(file, "dms0", 134);
    check_frame(file, 1);
    CHECK(at<std::uint16_t>(file, 8) == 1);
    CHECK(at<std::uint32_t>(file, 12) == 134);
    CHECK(at<std::uint16_t>(file, 16) == 2);
    CHECK(std::memcmp(file.data() + 20, "dms0", 4) == 0);
    CHECK(at<std::uint16_t>(file, 24) == 9);
    CHECK(at<std::uint16_t>(file, 26) == 1);
    CHECK(at<std::uint8_t>(file, 28) == 9);
}

TEST_CASE("a packet is padded, its true length kept", "[tap]")
{
    std::array<std::byte, 5> const captured{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}};
    bytes file;
    put_packet(file, moment{0x1'0000'0002}, captured, 9000, true);
    check_frame(file, 6);
    CHECK(at<std::uint32_t>(file, 8) == 0);
    CHECK(at<std::uint32_t>(file, 12) == 1);
    CHECK(at<std::uint32_t>(file, 16) == 2);
    CHECK(at<std::uint32_t>(file, 20) == 5);
    CHECK(at<std::uint32_t>(file, 24) == 9000);
    CHECK(std::memcmp(file.data() + 28, captured.data(), captured.size()) == 0);
    CHECK(at<std::uint16_t>(file, 36) == 2);  // flags
    CHECK(at<std::uint32_t>(file, 40) == 2);  // outgoing
}

TEST_CASE("the statistics have the number of drops", "[tap]")
{
    bytes file;
    put_statistics(file, moment{7}, 1000, 3);
    check_frame(file, 5);
    CHECK(at<std::uint16_t>(file, 20) == 4);
    CHECK(at<std::uint64_t>(file, 24) == 1000);
    CHECK(at<std::uint16_t>(file, 32) == 5);
    CHECK(at<std::uint64_t>(file, 36) == 3);
}
