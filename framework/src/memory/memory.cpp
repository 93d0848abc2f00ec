// SPDX-License-Identifier: Apache-2.0
#include <gpurx/memory.hpp>
#include <optional>

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
