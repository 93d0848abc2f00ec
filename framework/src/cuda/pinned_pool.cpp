// SPDX-License-Identifier: Apache-2.0
#include "pinned_pool.hpp"

namespace gpurx::detail::cuda {

CUresult pinned_pool::take(std::size_t size, std::byte*& block)
{
    {
        std::scoped_lock const lock{mutex_};
        auto& known = of_size_[size];
        if (!known.free.empty()) {
            block = known.free.back();
            known.free.pop_back();
            return CUDA_SUCCESS;
        }
        known.free.reserve(known.made + 1);  // put() must not fail
        ++known.made;
    }
    void* pinned = nullptr;
    auto status = CUDA_SUCCESS;
    {
        context_scope const scope{gpu_};
        status = scope.status();
        if (status == CUDA_SUCCESS)
            status = gpu_.calls().cuMemHostAlloc(&pinned, size, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    }
    if (status != CUDA_SUCCESS) {
        std::scoped_lock const lock{mutex_};
        --of_size_[size].made;
    }
    block = static_cast<std::byte*>(pinned);
    return status;
}

void pinned_pool::put(std::byte* block, std::size_t size) noexcept
{
    std::scoped_lock const lock{mutex_};
    of_size_[size].free.push_back(block);
}

}  // namespace gpurx::detail::cuda
