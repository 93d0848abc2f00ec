// SPDX-License-Identifier: Apache-2.0
#include "allocation_counter.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local std::size_t count = 0;
thread_local bool none_is_left = false;
thread_local bool (*excepted)() noexcept = nullptr;

bool fails() noexcept
{
    return none_is_left && (excepted == nullptr || !excepted());
}

void* counted(std::size_t size) noexcept
{
    ++count;
    return fails() ? nullptr : std::malloc(size == 0 ? 1 : size);
}

void* counted_or_throw(std::size_t size)
{
    if (auto* const memory = counted(size))
        return memory;
    throw std::bad_alloc{};
}

}  // namespace

std::size_t gpurx::test::allocations() noexcept
{
    return count;
}

gpurx::test::no_memory::no_memory(bool (*except)() noexcept) noexcept
{
    none_is_left = true;
    excepted = except;
}

gpurx::test::no_memory::~no_memory()
{
    none_is_left = false;
}

void* operator new(std::size_t size)
{
    return counted_or_throw(size);
}
void* operator new[](std::size_t size)
{
    return counted_or_throw(size);
}
void* operator new(std::size_t size, std::nothrow_t const& /*tag*/) noexcept
{
    return counted(size);
}
void* operator new[](std::size_t size, std::nothrow_t const& /*tag*/) noexcept
{
    return counted(size);
}
void operator delete(void* memory) noexcept
{
    std::free(memory);
}
void operator delete[](void* memory) noexcept
{
    std::free(memory);
}
void operator delete(void* memory, std::size_t /*size*/) noexcept
{
    std::free(memory);
}
void operator delete[](void* memory, std::size_t /*size*/) noexcept
{
    std::free(memory);
}

extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size)
{
    ++count;
    void* memory = nullptr;
    if (fails())
        return nullptr;
    return ::posix_memalign(&memory, std::max(alignment, sizeof(void*)), size) == 0 ? memory : nullptr;
}
