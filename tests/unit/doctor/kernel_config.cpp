// SPDX-License-Identifier: Apache-2.0
#include "kernel_config.hpp"

#include <isa-l/igzip_lib.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <vector>

using namespace gpurx::doctor;

namespace {

constexpr std::array<std::string_view, 2> wanted{"NET_DEVMEM", "UDMABUF"};

std::string gzip(std::string text)
{
    std::string packed(text.size() + 1024, '\0');
    isal_zstream stream{};
    isal_deflate_stateless_init(&stream);
    stream.gzip_flag = IGZIP_GZIP;
    stream.end_of_stream = 1;
    stream.flush = NO_FLUSH;
    stream.next_in = reinterpret_cast<std::uint8_t*>(text.data());
    stream.avail_in = static_cast<std::uint32_t>(text.size());
    stream.next_out = reinterpret_cast<std::uint8_t*>(packed.data());
    stream.avail_out = static_cast<std::uint32_t>(packed.size());
    REQUIRE(isal_deflate_stateless(&stream) == COMP_OK);
    packed.resize(stream.total_out);
    return packed;
}

}  // namespace

TEST_CASE("options of a kernel that are set")
{
    using options = std::map<std::string, std::string>;
    CHECK(read_kernel_config("CONFIG_NET_DEVMEM=y\n# CONFIG_UDMABUF is not set\nCONFIG_NET=y\n", wanted) ==
          options{{"NET_DEVMEM", "y"}});
    CHECK(read_kernel_config("CONFIG_UDMABUF=m", wanted) == options{{"UDMABUF", "m"}});
    CHECK(read_kernel_config("CONFIG_NET_DEVMEM_X=y\nNET_DEVMEM=y\n\n", wanted).empty());
    CHECK(read_kernel_config("", wanted).empty());
}

TEST_CASE("what was packed is unpacked")
{
    for (std::size_t const size : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{3'000'000}}) {
        std::string text(size, 'x');
        for (std::size_t i = 0; i < size; i += 7)
            text[i] = static_cast<char>('a' + i % 26);
        CHECK(gunzip(gzip(text)) == text);
    }
}

TEST_CASE("what is no gzip, or not all of one, is nothing")
{
    CHECK_FALSE(gunzip("").has_value());
    CHECK_FALSE(gunzip("CONFIG_NET_DEVMEM=y\n").has_value());
    auto const whole = gzip(std::string(100'000, 'y'));
    CHECK_FALSE(gunzip(whole.substr(0, whole.size() / 2)).has_value());
    CHECK_FALSE(gunzip(gzip(std::string((16 << 20) + 1, 'z'))).has_value());
}
