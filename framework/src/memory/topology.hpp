// SPDX-License-Identifier: Apache-2.0
//
// Finds the places of a NIC and a GPU in the machine, for explain(): bytes that cross NUMA nodes are slower. Chooses
// the GPU of a process.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpurx::detail {

// ---- no I/O ----

// Returns the name in /sys/bus/pci/devices: "0000:3b:00.0". Empty if all numbers are 0, which is not a GPU.
[[nodiscard]] std::string pci_address_of(int domain, int bus, int device);
// Returns an empty optional for -1, the value in /sys of a device without a node.
[[nodiscard]] std::optional<int> parse_numa_node(std::string_view text) noexcept;

struct whereabouts {
    int gpu = 0;              // CUDA's ordinal
    std::string gpu_address;  // empty: not known
    std::string visible;      // CUDA_VISIBLE_DEVICES; CUDA's ordinals count along it
    std::optional<int> gpu_node;
    std::optional<int> nic_node;
};
// Returns a text about the distance of a NIC and a GPU on these nodes, with advice if they are far apart.
[[nodiscard]] std::string describe_nodes(int nic_node, int gpu_node);
// "GPU 0 is 0000:3b:00.0, number 1 of CUDA_VISIBLE_DEVICES (2,3); NIC and GPU are on NUMA node 0"
[[nodiscard]] std::string describe(whereabouts const& of);

// Returns the ordinal of this process' GPU, of `count` GPUs. `local_rank`, `visible`: LOCAL_RANK and
// CUDA_VISIBLE_DEVICES; null or empty: not set. Throws system_error with the errors of gpurx::local_gpu().
[[nodiscard]] int choose_local_gpu(char const* local_rank, std::string_view visible, int count);

// ---- I/O ----

// Returns the number of GPUs that this process sees. Throws system_error.
[[nodiscard]] int count_gpus();
// `interface` may be empty: no NIC. `sys`: path of sysfs.
[[nodiscard]] whereabouts find_whereabouts(int gpu, std::string gpu_address, std::string_view interface,
                                           std::string_view sys = "/sys");

}  // namespace gpurx::detail
