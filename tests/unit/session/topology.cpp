// SPDX-License-Identifier: Apache-2.0
#include "memory/topology.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gpurx/error.hpp>
#include <optional>
#include <string>
#include <string_view>

using Catch::Matchers::ContainsSubstring;
using gpurx::detail::choose_local_gpu;
using gpurx::detail::describe;
using gpurx::detail::find_whereabouts;
using gpurx::detail::parse_numa_node;
using gpurx::detail::pci_address_of;

namespace {

// Laid out as sysfs is, links included: a NIC is found by its name, a GPU by its address.
class fake_sysfs {
  public:
    fake_sysfs() { REQUIRE(::mkdtemp(root_.data()) != nullptr); }
    fake_sysfs(fake_sysfs const&) = delete;
    fake_sysfs& operator=(fake_sysfs const&) = delete;
    ~fake_sysfs() { std::filesystem::remove_all(root_); }

    [[nodiscard]] std::string const& root() const noexcept { return root_; }
    void add(std::string const& address, std::string const& node, std::string const& interface = {})
    {
        auto const device = std::filesystem::path{root_} / "devices" / address;
        link(device, "bus/pci/devices/" + address);
        std::ofstream{device / "numa_node"} << node;
        if (interface.empty())
            return;
        link(device / "net" / interface, "class/net/" + interface);
        std::filesystem::create_directory_symlink(device, device / "net" / interface / "device");
    }

  private:
    void link(std::filesystem::path const& to, std::string const& name)
    {
        auto const from = std::filesystem::path{root_} / name;
        std::filesystem::create_directories(to);
        std::filesystem::create_directories(from.parent_path());
        std::filesystem::create_directory_symlink(to, from);
    }

    std::string root_ = (std::filesystem::temp_directory_path() / "gpurx-sysfs-XXXXXX").string();
};

}  // namespace

TEST_CASE("the address of a PCI device")
{
    CHECK(pci_address_of(0, 0x3b, 0) == "0000:3b:00.0");
    CHECK(pci_address_of(0x10001, 0xaf, 0x1f) == "10001:af:1f.0");
    CHECK(pci_address_of(0, 0, 0).empty());
}

TEST_CASE("a NUMA node as /sys tells it")
{
    CHECK(parse_numa_node("1") == 1);
    CHECK(parse_numa_node("0\n") == 0);
    CHECK(parse_numa_node("-1") == std::nullopt);
    CHECK(parse_numa_node("") == std::nullopt);
    CHECK(parse_numa_node("none") == std::nullopt);
    CHECK(parse_numa_node("3") == 3);
    CHECK(parse_numa_node("1x") == std::nullopt);
}

TEST_CASE("text has the NUMA nodes of a NIC and a GPU")
{
    CHECK(describe({.gpu = 3, .gpu_address = {}, .visible = {}, .gpu_node = {}, .nic_node = {}}) == "GPU 3");
    CHECK(describe({.gpu = 0, .gpu_address = "0000:3b:00.0", .visible = {}, .gpu_node = 0, .nic_node = 0}) ==
          "GPU 0 is 0000:3b:00.0; NIC and GPU are on NUMA node 0");
    CHECK(describe({.gpu = 1, .gpu_address = "0000:3b:00.0", .visible = "4,2", .gpu_node = 1, .nic_node = 0}) ==
          "GPU 1 is 0000:3b:00.0, number 2 of CUDA_VISIBLE_DEVICES (4,2); NIC on NUMA node 0, GPU on node 1: bytes "
          "cross the link between the processors; prefer a NIC and a GPU on one node");
    CHECK(describe({.gpu = 0, .gpu_address = {}, .visible = "7", .gpu_node = {}, .nic_node = 1}) ==
          "GPU 0 is number 1 of CUDA_VISIBLE_DEVICES (7)");
    CHECK(describe({.gpu = 0, .gpu_address = "0000:3b:00.0", .visible = {}, .gpu_node = 1, .nic_node = {}}) ==
          "GPU 0 is 0000:3b:00.0; GPU on NUMA node 1");
}

TEST_CASE("the GPU of a process is that of its LOCAL_RANK among those that it sees")
{
    CHECK(choose_local_gpu(nullptr, "", 8) == 0);
    CHECK(choose_local_gpu("0", "", 1) == 0);
    CHECK(choose_local_gpu("7", "", 8) == 7);
    CHECK(choose_local_gpu("1", "6,7", 2) == 1);
    // One that a launcher has given to this process alone.
    CHECK(choose_local_gpu("3", "5", 1) == 0);
    CHECK(choose_local_gpu("3", "GPU-8f6a", 1) == 0);
}

TEST_CASE("a LOCAL_RANK without a GPU is an error with advice")
{
    auto const refusal = [](char const* rank, std::string_view visible, int count, int error) {
        try {
            static_cast<void>(choose_local_gpu(rank, visible, count));
        } catch (gpurx::system_error const& failure) {
            CHECK(failure.code().value() == error);
            return std::string{failure.what()};
        }
        return std::string{"it was chosen"};
    };
    for (auto const* const text : {"", "first", "1x", "-1", " 1", "+1", "99999999999"})
        CHECK_THAT(refusal(text, "", 8, EINVAL), ContainsSubstring("set it to a number from 0"));
    CHECK_THAT(refusal("8", "", 8, ENODEV), ContainsSubstring("LOCAL_RANK '8'") && ContainsSubstring("sees 8 GPUs:"));
    CHECK_THAT(refusal("2", "6,7", 2, ENODEV), ContainsSubstring("sees 2 GPUs (CUDA_VISIBLE_DEVICES is 6,7)"));
    CHECK_THAT(refusal("0", "9", 0, ENODEV), ContainsSubstring("sees 0 GPUs (CUDA_VISIBLE_DEVICES is 9)"));
    CHECK_THAT(refusal(nullptr, "", 0, ENODEV), ContainsSubstring("sees 0 GPUs"));
}

TEST_CASE("the NUMA nodes of a NIC and a GPU are read from sysfs")
{
    fake_sysfs sys;
    sys.add("0000:3b:00.0", "0\n", "eth1");
    sys.add("0000:af:00.0", "1\n");
    sys.add("0000:b0:00.0", "-1\n", "eth2");
    auto const far = find_whereabouts(2, "0000:af:00.0", "eth1", sys.root());
    CHECK(far.nic_node == 0);
    CHECK(far.gpu_node == 1);
    CHECK_THAT(describe(far), ContainsSubstring("GPU 2 is 0000:af:00.0") && ContainsSubstring("GPU on node 1"));
    CHECK(find_whereabouts(0, "0000:3b:00.0", "eth1", sys.root()).gpu_node == 0);
    CHECK_FALSE(find_whereabouts(0, "0000:b0:00.0", "", sys.root()).gpu_node);
    CHECK_FALSE(find_whereabouts(0, "0000:af:00.0", "eth2", sys.root()).nic_node);
    CHECK_FALSE(find_whereabouts(0, "0000:af:00.0", "", sys.root()).nic_node);
}

TEST_CASE("text on a GPU names the environment that it was counted in")
{
    // NOLINTBEGIN(concurrency-mt-unsafe): nobody else reads it now
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    CHECK(find_whereabouts(1, "", "").visible.empty());
    ::setenv("CUDA_VISIBLE_DEVICES", "4,2", 1);
    CHECK(describe(find_whereabouts(1, "", "")) == "GPU 1 is number 2 of CUDA_VISIBLE_DEVICES (4,2)");
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    // NOLINTEND(concurrency-mt-unsafe)
}

TEST_CASE("devices that there are not have no NUMA node")
{
    auto const found = find_whereabouts(0, "ffff:ff:1f.0", "no-such-nic");
    CHECK_FALSE(found.gpu_node);
    CHECK_FALSE(found.nic_node);
}
