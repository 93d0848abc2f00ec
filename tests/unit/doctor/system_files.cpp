// SPDX-License-Identifier: Apache-2.0
#include "system_files.hpp"

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

void put(std::string& config, std::size_t offset, std::uint32_t value)
{
    for (std::size_t i = 0; i < 4; ++i)
        config[offset + i] = static_cast<char>(value >> 8 * i & 0xff);
}

// A configuration space with access control, behind another capability.
std::string bridge(std::uint8_t control)
{
    std::string config(4096, '\0');
    put(config, 0x100, 0x0001 | 1U << 16 | 0x148U << 20);
    put(config, 0x148, 0x000d | 1U << 16);
    config[0x148 + 6] = static_cast<char>(control);
    return config;
}

}  // namespace

TEST_CASE("the devices above a device are in its path")
{
    using list = std::vector<std::string>;
    CHECK(pci_addresses("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/net/eth0") ==
          list{"0000:00:01.0", "0000:01:00.0"});
    CHECK(pci_addresses("/sys/devices/pci10000:00/10000:00:01.0") == list{"10000:00:01.0"});
    CHECK(pci_addresses("/sys/devices/platform/devmemsim.0").empty());
}

TEST_CASE("a bridge with access control turns its peers' traffic, one without does not")
{
    CHECK(redirects_peers(bridge(0x1d)) == true);
    CHECK(redirects_peers(bridge(0x04)) == true);
    CHECK(redirects_peers(bridge(0x08)) == true);
    CHECK(redirects_peers(bridge(0x11)) == false);
    CHECK(redirects_peers(std::string(4096, '\0')) == std::nullopt);
    // What a process without rights gets to read.
    CHECK(redirects_peers(bridge(0x1d).substr(0, 64)) == std::nullopt);
}

TEST_CASE("a list of capabilities that never ends is left")
{
    std::string config(4096, '\0');
    put(config, 0x100, 0x0001 | 1U << 16 | 0x100U << 20);
    CHECK(redirects_peers(config) == std::nullopt);
    put(config, 0x100, 0x0001 | 1U << 16 | 0xffcU << 20);
    CHECK(redirects_peers(config) == std::nullopt);
}

TEST_CASE("the size of a region")
{
    std::string const resource =
        "0x00000000fa000000 0x00000000faffffff 0x0000000000040200\n"
        "0x0000380000000000 0x00003807ffffffff 0x000000000014220c\n"
        "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
    CHECK(region_size(resource, 0) == 16 << 20);
    CHECK(region_size(resource, 1) == std::uint64_t{32} << 30);
    CHECK(region_size(resource, 2) == std::nullopt);
    CHECK(region_size(resource, 3) == std::nullopt);
    CHECK(region_size("", 0) == std::nullopt);
    CHECK(region_size("0xfa", 0) == std::nullopt);
}

TEST_CASE("the bridges between two devices are those below what they share")
{
    using list = std::vector<std::string>;
    pci_facts const nic{"n", {"root", "switch", "left"}, "", {}};
    pci_facts const gpu{"g", {"root", "switch", "right"}, "", {}};
    auto const route = route_between(nic, gpu);
    CHECK(route.between == list{"left", "right"});
    CHECK(route.common);
    auto const apart = route_between(nic, {"g", {"other"}, "", {}});
    CHECK(apart.between == list{"root", "switch", "left", "other"});
    CHECK_FALSE(apart.common);
}

TEST_CASE("options of a kernel that are set")
{
    using options = std::map<std::string, std::string>;
    CHECK(read_kernel_config("CONFIG_NET_DEVMEM=y\n# CONFIG_UDMABUF is not set\nCONFIG_NET=y\n", wanted) ==
          options{{"NET_DEVMEM", "y"}});
    CHECK(read_kernel_config("CONFIG_UDMABUF=m", wanted) == options{{"UDMABUF", "m"}});
    CHECK(read_kernel_config("CONFIG_NET_DEVMEM_X=y\nNET_DEVMEM=y\n\n", wanted).empty());
    CHECK(read_kernel_config("", wanted).empty());
}

TEST_CASE("gunzip unpacks a packed text")
{
    for (std::size_t const size : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{3'000'000}}) {
        std::string text(size, 'x');
        for (std::size_t i = 0; i < size; i += 7)
            text[i] = static_cast<char>('a' + i % 26);
        CHECK(gunzip(gzip(text)) == text);
    }
}

TEST_CASE("gunzip returns nothing for other bytes, or a part of a gzip")
{
    CHECK_FALSE(gunzip("").has_value());
    CHECK_FALSE(gunzip("CONFIG_NET_DEVMEM=y\n").has_value());
    auto const whole = gzip(std::string(100'000, 'y'));
    CHECK_FALSE(gunzip(whole.substr(0, whole.size() / 2)).has_value());
    CHECK_FALSE(gunzip(gzip(std::string((16 << 20) + 1, 'z'))).has_value());
}
