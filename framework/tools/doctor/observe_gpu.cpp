// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <gpurx/memory.hpp>

#include "cuda/gpu.hpp"
#include "observe.hpp"
#include "system_files.hpp"

namespace gpurx::doctor {

namespace {

std::optional<std::string> address_of(detail::cuda::gpu const& gpu)
{
    int place[3]{};
    constexpr CUdevice_attribute parts[]{CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
                                         CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID};
    for (unsigned i = 0; i < 3; ++i) {
        if (gpu.calls().cuDeviceGetAttribute(&place[i], parts[i], gpu.device()) != CUDA_SUCCESS)
            return std::nullopt;
    }
    return fmt::format("{:04x}:{:02x}:{:02x}.0", place[0], place[1], place[2]);
}

}  // namespace

gpu_facts observe_gpu(int ordinal)
{
    constexpr std::size_t smallest = 2 << 20;
    constexpr unsigned bar1 = 1;
    gpu_facts facts;
    facts.ordinal = ordinal;
    try {
        auto const& gpu = detail::cuda::gpu::open(ordinal);
        facts.name = gpu.name();
        if (auto const address = address_of(gpu)) {
            facts.pci = observe_pci(*address);
            facts.bar1 = region_size(read_text("/sys/bus/pci/devices/" + *address + "/resource"), bar1);
        }
        auto const memory = device_memory::on_gpu(ordinal, smallest);
        facts.exports = memory.dmabuf_fd() >= 0;
        facts.explanation = memory.explain();
    } catch (system_error const& error) {
        facts.error = error.what();
    }
    return facts;
}

}  // namespace gpurx::doctor
