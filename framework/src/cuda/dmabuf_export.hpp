// SPDX-License-Identifier: Apache-2.0
//
// CUDA memory as a dmabuf.
#pragma once

#include <cstddef>
#include <string>

#include "gpu.hpp"
#include "syscalls.hpp"

namespace gpurx::detail::cuda {

struct dmabuf_export {
    unique_fd fd;       // empty: `code` and `why` say why not
    bool pcie = false;  // mapped for PCIe in particular, and not for a coherent link
    error_code code;
    diagnostics why;
};

// `address` and `bytes` are of whole host pages, in one allocation. `object` is what an error names.
[[nodiscard]] dmabuf_export export_dmabuf(gpu const& on, CUdeviceptr address, std::size_t bytes, std::string object);

// Who made a dmabuf, as /proc says; empty if it does not.
[[nodiscard]] std::string exporter_of(int dmabuf);

}  // namespace gpurx::detail::cuda
