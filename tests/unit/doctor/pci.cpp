// SPDX-License-Identifier: Apache-2.0
#include "pci.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace gpurx::doctor;

namespace {

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
