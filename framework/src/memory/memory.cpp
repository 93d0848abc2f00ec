// SPDX-License-Identifier: Apache-2.0
#include <gpurx/memory.hpp>
#include <optional>
#include <utility>

#include "memory_state.hpp"

namespace gpurx {

namespace {

// Runs `make`, turning what it throws into `code` and `why`.
template <class Make>
std::shared_ptr<detail::memory_state> reporting(Make make, error_code& code, diagnostics& why)
{
    try {
        code.clear();
        why.clear();
        return make();
    } catch (system_error const& failure) {
        code = failure.code();
        why = failure.why();
        return nullptr;
    }
}

}  // namespace

namespace detail {

void host_bytes_deleter::operator()(std::byte* bytes) const noexcept
{
    if (pinned_by != nullptr)
        pinned_by->free_host(bytes);
    else
        delete[] bytes;
}

host_bytes memory_state::allocate_host(std::size_t size)
{
    return allocate_plain(size);
}

host_bytes memory_state::allocate_plain(std::size_t size)
{
    return host_bytes{new std::byte[size], {}};
}

}  // namespace detail

device_memory device_memory::on_host(std::size_t bytes)
{
    return device_memory{detail::make_host_memory(bytes)};
}

device_memory device_memory::on_host(std::size_t bytes, error_code& code, diagnostics& why)
{
    return device_memory{reporting([&] { return detail::make_host_memory(bytes); }, code, why)};
}

device_memory device_memory::on_gpu(int ordinal, std::size_t bytes)
{
    return device_memory{detail::make_gpu_memory(ordinal, bytes)};
}

device_memory device_memory::on_gpu(int ordinal, std::size_t bytes, error_code& code, diagnostics& why)
{
    return device_memory{reporting([&] { return detail::make_gpu_memory(ordinal, bytes); }, code, why)};
}

device_memory device_memory::on_pinned_host(std::size_t bytes, int ordinal)
{
    return device_memory{detail::make_pinned_memory(ordinal, bytes)};
}

device_memory device_memory::on_pinned_host(std::size_t bytes, int ordinal, error_code& code, diagnostics& why)
{
    return device_memory{reporting([&] { return detail::make_pinned_memory(ordinal, bytes); }, code, why)};
}

device_memory device_memory::adopt(std::uintptr_t address, std::size_t bytes, std::shared_ptr<void const> owner)
{
    return device_memory{detail::adopt_gpu_memory(address, bytes, std::move(owner))};
}

device_memory device_memory::adopt(std::uintptr_t address, std::size_t bytes, std::shared_ptr<void const> owner,
                                   error_code& code, diagnostics& why)
{
    return device_memory{
        reporting([&] { return detail::adopt_gpu_memory(address, bytes, std::move(owner)); }, code, why)};
}

memory_kind device_memory::kind() const noexcept
{
    return state_->span().kind();
}

std::size_t device_memory::size() const noexcept
{
    return state_->span().size();
}

device_span device_memory::span() const noexcept
{
    return state_->span();
}

int device_memory::dmabuf_fd() const noexcept
{
    return state_->dmabuf_fd();
}

std::string device_memory::explain() const
{
    return state_->explain();
}

}  // namespace gpurx
