// SPDX-License-Identifier: Apache-2.0
//
// GPU memory. This version has no CUDA support: the seam is here, and the error says so.
#include <fmt/format.h>

#include "memory_state.hpp"

namespace gpurx::detail {

std::shared_ptr<memory_state> make_gpu_memory(int ordinal, std::size_t /*bytes*/)
{
    throw system_error{errc::no_cuda,
                       {.operation = "allocate memory of",
                        .object = fmt::format("GPU {}", ordinal),
                        .kernel_message = {},
                        .advice = "this gpurx was built without CUDA: use device_memory::on_host"}};
}

}  // namespace gpurx::detail
