// SPDX-License-Identifier: Apache-2.0
//
// Finds where a NIC and a GPU are in the machine, for explain(): bytes that change the NUMA node on their way are
// slower. Chooses the GPU of a process.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpurx::detail {

// ---- no I/O ----

// As in /sys/bus/pci/devices: "0000:3b:00.0". Empty if all are 0, which is no GPU.
[[nodiscard]] std::string pci_address_of(int domain, int bus, int device);
// What /sys says of a device without a node, -1, is nothing.
[[nodiscard]] std::optional<int> parse_numa_node(std::string_view text) noexcept;

struct whereabouts {
    int gpu = 0;              // CUDA's ordinal
    std::string gpu_address;  // empty: not known
    std::string visible;      // CUDA_VISIBLE_DEVICES, which CUDA counts along
    std::optional<int> gpu_node;
    std::optional<int> nic_node;
};
// What a NIC and a GPU on these nodes are to each other, and what to do if they are far.
[[nodiscard]] std::string describe_nodes(int nic_node, int gpu_node);
// "GPU 0 is 0000:3b:00.0, number 1 of CUDA_VISIBLE_DEVICES (2,3); NIC and GPU are on NUMA node 0"
[[nodiscard]] std::string describe(whereabouts const& of);

// Which of `count` GPUs is this process's. `local_rank`, `visible`: LOCAL_RANK and CUDA_VISIBLE_DEVICES; null, and
// empty: not set. Throws system_error, as gpurx::local_gpu() says.
[[nodiscard]] int choose_local_gpu(char const* local_rank, std::string_view visible, int count);

// ---- I/O ----

// GPUs that this process sees. Throws system_error.
[[nodiscard]] int count_gpus();
// `interface` may be empty: no NIC. `sys`: where sysfs is.
[[nodiscard]] whereabouts find_whereabouts(int gpu, std::string gpu_address, std::string_view interface,
                                           std::string_view sys = "/sys");

}  // namespace gpurx::detail
