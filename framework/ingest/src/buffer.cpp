// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <gpurx/ingest/buffer.hpp>
#include <new>

namespace gpurx::ingest {

namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

}  // namespace

// Kernels place a mapping anywhere, or align only a whole number of huge pages (Linux 6.13). So the bytes begin where a
// huge page can, in a mapping that is one larger. Pages that nobody touches cost nothing.
buffer buffer::on_host(std::size_t bytes)
{
    if (bytes == 0)
        return {};
    auto const whole = bytes / huge_page * huge_page;
    auto const size = whole == 0 ? bytes : bytes + huge_page;
    auto* const pages = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        throw std::bad_alloc{};
    std::shared_ptr<void const> owner{
        pages, [size](void const* all) { static_cast<void>(::munmap(const_cast<void*>(all), size)); }};
    auto address = reinterpret_cast<std::uintptr_t>(pages);
    if (whole != 0) {
        address = (address + huge_page - 1) / huge_page * huge_page;
        // Only faster. A huge page at the end would be cleared for its first bytes.
        static_cast<void>(::madvise(reinterpret_cast<void*>(address), whole, MADV_HUGEPAGE));
    }
    return {std::move(owner), {memory_kind::host, address, bytes}, -1};
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
