// SPDX-License-Identifier: Apache-2.0
#include "staging_pool.hpp"

namespace gpurx::detail::cuda {

CUresult staging_pool::take(std::byte*& chunk)
{
    std::scoped_lock const lock{mutex_};
    if (!free_.empty()) {
        chunk = free_.back();
        free_.pop_back();
        return CUDA_SUCCESS;
    }
    free_.reserve(made_ + 1);  // put() must not fail
    context_scope const scope{gpu_};
    if (scope.status() != CUDA_SUCCESS)
        return scope.status();
    void* pinned = nullptr;
    auto const status = gpu_.calls().cuMemHostAlloc(&pinned, chunk_size, CU_MEMHOSTALLOC_PORTABLE);
    if (status == CUDA_SUCCESS)
        ++made_;
    chunk = static_cast<std::byte*>(pinned);
    return status;
}

void staging_pool::put(std::byte* chunk) noexcept
{
    std::scoped_lock const lock{mutex_};
    free_.push_back(chunk);
}

}  // namespace gpurx::detail::cuda
