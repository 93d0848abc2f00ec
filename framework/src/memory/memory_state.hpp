// SPDX-License-Identifier: Apache-2.0
//
// The shared state of device_memory handles: an allocation, its mapping and its dmabuf. One implementation per kind of
// memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gpurx/error.hpp>
#include <gpurx/views.hpp>

#include "base/syscalls.hpp"

namespace gpurx::detail {

class memory_state;

inline constexpr int no_gpu = -1;

// Host bytes that belong to a memory; pinned if the memory is a GPU's.
struct host_bytes_deleter {
    memory_state* pinned_by = nullptr;  // null: heap memory
    std::size_t size = 0;               // size, if pinned

    void operator()(std::byte* bytes) const noexcept;
};
using host_bytes = std::unique_ptr<std::byte[], host_bytes_deleter>;

class memory_state {
  public:
    memory_state(memory_state const&) = delete;
    memory_state& operator=(memory_state const&) = delete;
    virtual ~memory_state() = default;

    [[nodiscard]] memory_span span() const noexcept { return span_; }
    // Size of a range that is physically contiguous and aligned: 4 KiB, or 2 MiB with huge pages.
    [[nodiscard]] std::size_t page_size() const noexcept { return page_size_; }
    // -1: not exported. This object owns the descriptor.
    [[nodiscard]] int dmabuf_fd() const noexcept { return dmabuf_fd_; }
    // Another dmabuf of the same bytes, for a device that cannot attach to the first one; -1: none.
    [[nodiscard]] virtual int other_dmabuf_fd() { return -1; }
    // Exports a part as the dmabuf `like`, one of the two above, exports all. `offset` and `size`: multiples of
    // page_size(). On an error returns an empty descriptor and sets `code` and `why`: EOPNOTSUPP if it has no parts.
    [[nodiscard]] virtual unique_fd export_part(int like, std::size_t offset, std::size_t size, error_code& code,
                                                diagnostics& why);
    // Reason why dmabuf_fd() is -1; no error if it is not -1.
    [[nodiscard]] error_code export_error() const noexcept { return export_error_; }
    [[nodiscard]] diagnostics const& why_not_exported() const noexcept { return why_not_exported_; }
    [[nodiscard]] virtual std::string explain() const = 0;

    // The GPU whose streams may read the memory, so that its pages must wait for them; no_gpu: none.
    [[nodiscard]] virtual int ordinal() const noexcept { return no_gpu; }
    // The permanent error of its GPU; no error: none is known. `ask`: also ask the driver.
    [[nodiscard]] virtual error_code failure(bool /*ask*/) noexcept { return {}; }
    // PCI address of the GPU, as in /sys/bus/pci/devices; empty: no GPU, or not known.
    [[nodiscard]] virtual std::string pci_address() const { return {}; }
    // The memory, if work in the primary context of that GPU certainly reaches all of it at its own addresses. Empty:
    // the caller must ask the driver.
    [[nodiscard]] virtual memory_span known_to(int /*ordinal*/) const noexcept { return {}; }
    // Implements rx_buffer::acquire(): makes writes of a device visible to the CPU, or to later work on `stream`.
    virtual void acquire(cuda_stream_ref stream) noexcept = 0;
    // Allocates host bytes for data that arrives on the host. The memory's GPU can access them. Throws std::bad_alloc
    // or system_error. The memory must outlive the bytes.
    [[nodiscard]] virtual host_bytes allocate_host(std::size_t size);
    // Allocates bytes that take no memory until they are written. The GPU cannot access them.
    [[nodiscard]] static host_bytes allocate_plain(std::size_t size);

  protected:
    friend struct host_bytes_deleter;
    memory_state() = default;
    // Frees bytes that allocate_host() pinned.
    virtual void free_host(std::byte* /*bytes*/, std::size_t /*size*/) noexcept {}

    void place(memory_span span, std::size_t page_size) noexcept
    {
        span_ = span;
        page_size_ = page_size;
    }
    // The implementation owns `fd`. -1: not exported, with the reason.
    void set_export(int fd, error_code code, diagnostics why) noexcept
    {
        dmabuf_fd_ = fd;
        export_error_ = code;
        why_not_exported_ = std::move(why);
    }

  private:
    memory_span span_;
    std::size_t page_size_ = 0;
    int dmabuf_fd_ = -1;
    error_code export_error_;
    diagnostics why_not_exported_;
};

// One function for each kind of memory. They throw system_error.
[[nodiscard]] std::shared_ptr<memory_state> make_host_memory(std::size_t bytes);
[[nodiscard]] std::shared_ptr<memory_state> make_gpu_memory(int ordinal, std::size_t bytes);
[[nodiscard]] std::shared_ptr<memory_state> make_pinned_memory(int ordinal, std::size_t bytes);
[[nodiscard]] std::shared_ptr<memory_state> adopt_gpu_memory(std::uintptr_t address, std::size_t bytes,
                                                             std::shared_ptr<void const> owner);

// ---- /dev/udmabuf: a memfd becomes a dmabuf ----

// Returns a dmabuf of `bytes` of `memfd` from `offset` on. On an error returns an empty descriptor and sets `code` and
// `why`. The memfd must be sealed against shrinking.
[[nodiscard]] unique_fd export_memfd(int memfd, std::size_t offset, std::size_t bytes, error_code& code,
                                     diagnostics& why);

// Returns advice for an export that failed with `code`. `size_limit` is the module's limit in MiB, if known.
[[nodiscard]] std::string export_advice(error_code code, std::size_t bytes, std::optional<std::size_t> size_limit);

}  // namespace gpurx::detail
