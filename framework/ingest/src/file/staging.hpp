// SPDX-License-Identifier: Apache-2.0
//
// Memory that a flow reads blocks into when they cannot be read to where they belong.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include <gpurx/memory.hpp>

namespace gpurx::ingest::detail {

// Allocated at the first use; the pages of what is on the host, as they are used.
class staging {
  public:
    [[nodiscard]] std::span<std::byte> on_host(std::size_t bytes)
    {
        constexpr std::size_t page = 4096;
        if (on_host_ == nullptr)
            on_host_.reset(static_cast<std::byte*>(std::aligned_alloc(page, (bytes + page - 1) / page * page)));
        if (on_host_ == nullptr)
            throw std::bad_alloc{};
        return {on_host_.get(), bytes};
    }
    // For a GPU to read.
    [[nodiscard]] std::span<std::byte> pinned(std::size_t bytes)
    {
        if (!pinned_.valid())
            pinned_ = device_memory::on_pinned_host(bytes);
        return {reinterpret_cast<std::byte*>(pinned_.span().address()), bytes};
    }

  private:
    struct freed {
        void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
    };

    std::unique_ptr<std::byte, freed> on_host_;
    device_memory pinned_;
};

}  // namespace gpurx::ingest::detail
