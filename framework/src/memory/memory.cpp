// SPDX-License-Identifier: Apache-2.0
//
// Host memory that a NIC may write into: a memfd, mapped here and exported by /dev/udmabuf.

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/dma-buf.h>
#include <linux/memfd.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <optional>
#include <utility>

#include <gpurx/memory.hpp>

#include "base/byte_size.hpp"
#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "memory_state.hpp"

namespace gpurx {

namespace detail {

void host_bytes_deleter::operator()(std::byte* bytes) const noexcept
{
    if (pinned_by != nullptr)
        pinned_by->free_host(bytes, size);
    else
        delete[] bytes;
}

host_bytes memory_state::allocate_host(std::size_t size)
{
    return allocate_plain(size);
}

unique_fd memory_state::export_part(int /*like*/, std::size_t /*offset*/, std::size_t /*size*/, error_code& code,
                                    diagnostics& why)
{
    code = make_error_code(boost::system::errc::operation_not_supported);
    why = {.operation = "export", .object = "a part of " + explain(), .kernel_message = {}, .advice = {}};
    return {};
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
    return device_memory{detail::reporting(code, why, [&] { return detail::make_host_memory(bytes); })};
}

device_memory device_memory::on_gpu(int ordinal, std::size_t bytes)
{
    return device_memory{detail::make_gpu_memory(ordinal, bytes)};
}

device_memory device_memory::on_gpu(int ordinal, std::size_t bytes, error_code& code, diagnostics& why)
{
    return device_memory{detail::reporting(code, why, [&] { return detail::make_gpu_memory(ordinal, bytes); })};
}

device_memory device_memory::on_pinned_host(std::size_t bytes, int ordinal)
{
    return device_memory{detail::make_pinned_memory(ordinal, bytes)};
}

device_memory device_memory::on_pinned_host(std::size_t bytes, int ordinal, error_code& code, diagnostics& why)
{
    return device_memory{detail::reporting(code, why, [&] { return detail::make_pinned_memory(ordinal, bytes); })};
}

device_memory device_memory::adopt(std::uintptr_t address, std::size_t bytes, std::shared_ptr<void const> owner)
{
    return device_memory{detail::adopt_gpu_memory(address, bytes, std::move(owner))};
}

device_memory device_memory::adopt(std::uintptr_t address, std::size_t bytes, std::shared_ptr<void const> owner,
                                   error_code& code, diagnostics& why)
{
    return device_memory{
        detail::reporting(code, why, [&] { return detail::adopt_gpu_memory(address, bytes, std::move(owner)); })};
}

memory_kind device_memory::kind() const noexcept
{
    return state_->span().kind();
}

std::size_t device_memory::size() const noexcept
{
    return state_->span().size();
}

memory_span device_memory::span() const noexcept
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

namespace gpurx::detail {

std::string export_advice(error_code code, std::size_t bytes, std::optional<std::size_t> size_limit)
{
    namespace error = boost::system::errc;
    if (code == error::no_such_file_or_directory || code == error::no_such_device ||
        code == error::no_such_device_or_address)
        return "load the udmabuf module (modprobe udmabuf; the kernel needs CONFIG_UDMABUF)";
    if (code == error::permission_denied || code == error::operation_not_permitted)
        return "give this user access to /dev/udmabuf (on most systems: add the user to the group that owns it)";
    if (code == error::invalid_argument && size_limit && bytes > *size_limit * mebibyte)
        return fmt::format("raise the module parameter udmabuf.size_limit_mb, which is {}, to at least {}", *size_limit,
                           round_up(bytes, mebibyte) / mebibyte);
    if (code == error::not_enough_memory)
        return "ask for less memory, or free some";
    return {};
}

namespace {

constexpr char device_path[] = "/dev/udmabuf";

std::optional<std::size_t> module_size_limit()
{
    std::ifstream file{"/sys/module/udmabuf/parameters/size_limit_mb"};
    if (std::size_t limit = 0; file >> limit)
        return limit;
    return std::nullopt;
}

void note_failure(std::string operation, std::string object, std::size_t bytes, error_code& code, diagnostics& why)
{
    code.assign(errno, boost::system::system_category());
    why = {.operation = std::move(operation),
           .object = std::move(object),
           .kernel_message = {},
           .advice = export_advice(code, bytes, module_size_limit())};
}

}  // namespace

unique_fd export_memfd(int memfd, std::size_t offset, std::size_t bytes, error_code& code, diagnostics& why)
{
    unique_fd const device{::open(device_path, O_RDWR | O_CLOEXEC)};
    if (!device) {
        note_failure("open", device_path, bytes, code, why);
        return {};
    }
    udmabuf_create request{};
    request.memfd = static_cast<__u32>(memfd);
    request.flags = UDMABUF_FLAGS_CLOEXEC;
    request.offset = offset;
    request.size = bytes;
    unique_fd dmabuf{::ioctl(device.get(), UDMABUF_CREATE, &request)};
    if (!dmabuf)
        note_failure("export", fmt::format("{} through {}", size_text(bytes), device_path), bytes, code, why);
    return dmabuf;
}

namespace {

constexpr std::size_t huge_page = 2 * mebibyte;

// On x86-64 a device's writes to memory are visible to the CPU without further ado.
#if defined(__x86_64__)
constexpr bool dma_is_coherent = true;
#else
constexpr bool dma_is_coherent = false;
#endif

[[noreturn]] void cannot_allocate(int error, std::size_t bytes, std::string advice = {})
{
    fail(error, "allocate", size_text(bytes) + " of host memory", std::move(advice));
}

// Huge pages that nobody has or has been promised.
std::size_t free_huge_pages()
{
    auto const read = [](char const* name) {
        std::ifstream file{fmt::format("/sys/kernel/mm/hugepages/hugepages-{}kB/{}", huge_page / kibibyte, name)};
        std::size_t count = 0;
        file >> count;
        return count;
    };
    auto const available = read("free_hugepages");
    auto const promised = read("resv_hugepages");
    return available > promised ? available - promised : 0;
}

// A new memfd and its mapping.
class mapped_memfd {
  public:
    // `bytes` is a multiple of the page size. valid() is false, and errno set, on failure.
    mapped_memfd(std::size_t bytes, unsigned page_flags)
        : memfd_{::memfd_create("gpurx", MFD_CLOEXEC | MFD_ALLOW_SEALING | page_flags)}, size_{bytes}
    {
        if (!memfd_ || ::ftruncate(memfd_.get(), static_cast<off_t>(bytes)) != 0 ||
            ::fcntl(memfd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
            return;
        address_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_.get(), 0);
    }
    mapped_memfd(mapped_memfd&& other) noexcept
        : memfd_{std::move(other.memfd_)}, address_{std::exchange(other.address_, MAP_FAILED)}, size_{other.size_}
    {}
    mapped_memfd(mapped_memfd const&) = delete;
    mapped_memfd& operator=(mapped_memfd const&) = delete;
    mapped_memfd& operator=(mapped_memfd&&) = delete;
    ~mapped_memfd()
    {
        if (valid())
            ::munmap(address_, size_);
    }

    [[nodiscard]] bool valid() const noexcept { return address_ != MAP_FAILED; }
    [[nodiscard]] int memfd() const noexcept { return memfd_.get(); }
    [[nodiscard]] memory_span span() const noexcept
    {
        return {memory_kind::host, reinterpret_cast<std::uintptr_t>(address_), size_};
    }

  private:
    unique_fd memfd_;
    void* address_ = MAP_FAILED;
    std::size_t size_;
};

class host_memory final : public memory_state {
  public:
    host_memory(mapped_memfd mapped, std::size_t page_size) : mapped_{std::move(mapped)}
    {
        place(mapped_.span(), page_size);
        error_code code;
        diagnostics why;
        dmabuf_ = export_memfd(mapped_.memfd(), 0, span().size(), code, why);
        set_export(dmabuf_.get(), code, std::move(why));
    }

    [[nodiscard]] std::string explain() const override
    {
        auto const what = fmt::format("host memory, {} in {} pages", size_text(span().size()), size_text(page_size()));
        if (dmabuf_fd() >= 0)
            return what + ", exported by udmabuf";
        return fmt::format("{}, for transport copy only: {}", what, describe(export_error(), why_not_exported()));
    }

    [[nodiscard]] unique_fd export_part(int /*like*/, std::size_t offset, std::size_t size, error_code& code,
                                        diagnostics& why) override
    {
        return export_memfd(mapped_.memfd(), offset, size, code, why);
    }

    void acquire(cuda_stream_ref /*stream*/) noexcept override
    {
        if constexpr (!dma_is_coherent) {
            if (dmabuf_fd() < 0)
                return;
            dma_buf_sync sync{DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ};
            while (::ioctl(dmabuf_fd(), DMA_BUF_IOCTL_SYNC, &sync) != 0 && errno == EINTR) {
            }
        }
    }

  private:
    mapped_memfd mapped_;
    unique_fd dmabuf_;
};

}  // namespace

std::shared_ptr<memory_state> make_host_memory(std::size_t bytes)
{
    if (bytes == 0)
        cannot_allocate(EINVAL, bytes, "ask for at least one byte");

    constexpr auto most = std::size_t{PTRDIFF_MAX} - huge_page;
    if (bytes > most)
        cannot_allocate(ENOMEM, bytes);

    auto const in_huge_pages = round_up(bytes, huge_page);
    if (in_huge_pages / huge_page <= free_huge_pages()) {
        // Somebody else may take them first: then ordinary pages will do.
        if (mapped_memfd mapped{in_huge_pages, MFD_HUGETLB | MFD_HUGE_2MB}; mapped.valid())
            return std::make_shared<host_memory>(std::move(mapped), huge_page);
    }

    auto const page_size = sys::page_size();
    mapped_memfd mapped{round_up(bytes, page_size), 0};
    if (!mapped.valid())
        cannot_allocate(errno, bytes);
    return std::make_shared<host_memory>(std::move(mapped), page_size);
}

}  // namespace gpurx::detail
