// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <gpurx/ingest/buffer.hpp>
#include <new>

namespace gpurx::ingest {

buffer buffer::on_host(std::size_t bytes)
{
    if (bytes == 0)
        return {};
    auto* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
        throw std::bad_alloc{};
    std::shared_ptr<void const> owner{
        address, [bytes](void const* pages) { static_cast<void>(::munmap(const_cast<void*>(pages), bytes)); }};
    // Only faster.
    static_cast<void>(::madvise(address, bytes, MADV_HUGEPAGE));
    return {std::move(owner), {memory_kind::host, reinterpret_cast<std::uintptr_t>(address), bytes}, -1};
}

buffer buffer::on_gpu(int ordinal, std::size_t bytes)
{
    if (bytes == 0)
        return {};
    auto memory = std::make_shared<device_memory>(device_memory::on_gpu(ordinal, bytes));
    auto const span = memory->span().first(bytes);
    return {std::move(memory), span, ordinal};
}

}  // namespace gpurx::ingest
