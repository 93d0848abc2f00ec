// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

#include "base/byte_size.hpp"
#include "interface_findings.hpp"
#include "memory/topology.hpp"
#include "system_files.hpp"

namespace gpurx::doctor {

namespace {

using detail::size_text;

finding check_route(interface_facts const& nic, gpu_facts const& gpu)
{
    constexpr char topic[] = "pcie";
    if (!nic.pci || !gpu.pci)
        return {.level = severity::note,
                .topic = topic,
                .what = "the path from the NIC to the GPU cannot be determined",
                .evidence = nic.pci ? "the GPU has no PCI address" : "the NIC has no PCI address"};
    auto const route = route_between(*nic.pci, *gpu.pci);
    auto const ends = fmt::format("{} to {}", nic.pci->address, gpu.pci->address);
    if (!route.common)
        return {.level = severity::degraded,
                .topic = topic,
                .what =
                    "NIC and GPU have no PCIe switch or root port in common: the NIC's writes cross the CPU's root "
                    "complex, if the GPU's driver permits that",
                .evidence = ends,
                .command = "nvidia-smi topo -m"};
    std::vector<std::string> commands;
    for (auto const& bridge : route.between) {
        for (auto const* const end : {&*nic.pci, &*gpu.pci}) {
            if (auto const turns = end->turns.find(bridge); turns != end->turns.end() && turns->second)
                commands.push_back(fmt::format("setpci -s {} ECAP_ACS+6.w=0:c", bridge));
        }
    }
    if (!commands.empty())
        return {.level = severity::degraded,
                .topic = topic,
                .what = "access control (ACS) of bridges sends the NIC's writes up to the root and back",
                .evidence = ends,
                .command = fmt::format("{}", fmt::join(commands, "; "))};
    return {.topic = topic, .what = "the NIC's writes reach the GPU below a common bridge", .evidence = ends};
}

std::optional<finding> check_iommu(interface_facts const& nic)
{
    if (!nic.pci)
        return std::nullopt;
    auto const& type = nic.pci->iommu;
    if (type.empty() || type == "identity")
        return finding{.topic = "iommu",
                       .what = "no IOMMU translates the NIC's addresses",
                       .evidence = type.empty() ? "no IOMMU group" : "group of type identity"};
    return finding{
        .level = severity::degraded,
        .topic = "iommu",
        .what = "an IOMMU translates the NIC's addresses, so the NIC cannot reach GPU memory: boot with iommu=pt",
        .evidence = fmt::format("group of type {}", type)};
}

// Compares the NUMA nodes of NIC and GPU: between two nodes every write of the NIC crosses from socket to socket.
std::optional<finding> check_numa(interface_facts const& nic, gpu_facts const& gpu)
{
    if (!nic.pci || !nic.pci->numa_node || !gpu.pci || !gpu.pci->numa_node)
        return std::nullopt;  // one node has all, or firmware does not tell
    int const near = *nic.pci->numa_node;
    int const far = *gpu.pci->numa_node;
    finding found{.topic = "numa",
                  .what = detail::describe_nodes(near, far),
                  .evidence = fmt::format("NIC on node {}, GPU {} on node {}", near, gpu.ordinal, far)};
    if (near != far) {
        found.level = severity::degraded;
        found.command = "nvidia-smi topo -m";
    }
    return found;
}

}  // namespace

std::vector<finding> check_gpu(gpu_facts const& gpu, requirements const& wanted)
{
    auto const name = fmt::format("GPU {}", gpu.ordinal);
    if (!gpu.error.empty())
        return {{.level = severity::blocking,
                 .topic = "gpu",
                 .what = fmt::format("{} cannot be used", name),
                 .evidence = gpu.error}};
    std::vector<finding> found;
    found.push_back({.level = gpu.exports ? severity::fine : severity::blocking,
                     .topic = "gpu",
                     .what = gpu.exports ? fmt::format("memory of {} ({}) can be exported to a NIC", name, gpu.name)
                                         : fmt::format("memory of {} ({}) cannot be exported to a NIC", name, gpu.name),
                     .evidence = gpu.explanation});
    if (gpu.bar1 && *gpu.bar1 < wanted.memory) {
        found.push_back(
            {.level = severity::blocking,
             .topic = "bar1",
             .what = fmt::format("NICs cannot reach that much memory of {}: use less memory, or turn resizable BAR on "
                                 "in the firmware",
                                 name),
             .evidence = fmt::format("BAR1 has {}, {} of memory", size_text(*gpu.bar1), size_text(wanted.memory))});
    } else if (gpu.bar1) {
        found.push_back({.topic = "bar1",
                         .what = fmt::format("NICs can reach that much memory of {}", name),
                         .evidence = fmt::format("BAR1 has {}", size_text(*gpu.bar1))});
    }
    return found;
}

void check_path(interface_facts const& nic, gpu_facts const& gpu, std::vector<finding>& found)
{
    found.push_back(check_route(nic, gpu));
    if (auto numa = check_numa(nic, gpu))
        found.push_back(*std::move(numa));
    if (auto iommu = check_iommu(nic))
        found.push_back(*std::move(iommu));
}

}  // namespace gpurx::doctor
