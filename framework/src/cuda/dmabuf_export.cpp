// SPDX-License-Identifier: Apache-2.0
#include "dmabuf_export.hpp"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <utility>

namespace gpurx::detail::cuda {

namespace {

// The mapping for PCIe first: on a GPU with a coherent link to the CPU as well, the NIC's writes and what the CPU sends
// must take one way, or nothing orders them. Drivers before CUDA 12.8 do not know the flag, and GPUs without such a
// link may refuse it: then there is only one way, and 0 means the same.
#if CUDA_VERSION >= 12080
constexpr std::array<unsigned long long, 2> flags{CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, 0};
#else
constexpr std::array<unsigned long long, 1> flags{0};
#endif

std::string advice_for(CUresult status)
{
    switch (status) {
        case CUDA_ERROR_NOT_SUPPORTED:
            return "the driver does not export this memory: it needs the open kernel modules of a datacenter or RTX "
                   "GPU";
        case CUDA_ERROR_OUT_OF_MEMORY:
            return "BAR1 may be too small for it (nvidia-smi -q -d MEMORY)";
        default:
            return {};
    }
}

}  // namespace

dmabuf_export export_dmabuf(gpu const& on, CUdeviceptr address, std::size_t bytes, std::string object)
{
    dmabuf_export result;
    context_scope const scope{on};
    auto status = scope.status();
    for (std::size_t i = 0; status == CUDA_SUCCESS && i < flags.size(); ++i) {
        int fd = -1;
        auto const answer = on.calls().cuMemGetHandleForAddressRange(&fd, address, bytes,
                                                                     CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags[i]);
        if (answer == CUDA_SUCCESS) {
            result.fd = unique_fd{fd};
            result.pcie = flags[i] != 0;
            return result;
        }
        if (i + 1 == flags.size())
            status = answer;
    }
    result.code = error_of(status);
    result.why = {.operation = "export",
                  .object = std::move(object),
                  .kernel_message = {},
                  .advice = on.facts().dmabuf ? advice_for(status) : advice_for(CUDA_ERROR_NOT_SUPPORTED)};
    return result;
}

std::string exporter_of(int dmabuf)
{
    std::ifstream facts{fmt::format("/proc/self/fdinfo/{}", dmabuf)};
    for (std::string line; std::getline(facts, line);)
        if (constexpr std::string_view key{"exp_name:"}; line.starts_with(key))
            return line.substr(line.find_first_not_of(" \t", key.size()));
    return {};
}

}  // namespace gpurx::detail::cuda
