// SPDX-License-Identifier: Apache-2.0
#include "bound_nic.hpp"

#include <fcntl.h>
#include <net/if.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "memory/memory_state.hpp"
#include "nic/kernel_nic.hpp"

namespace detail = gpurx::detail;

namespace bench {
namespace {

constexpr char const* interface = "dms0";
constexpr unsigned queue = 3;  // as in guest.sh

[[noreturn]] void fail(char const* what)
{
    throw std::system_error{errno, std::system_category(), what};
}

detail::unique_fd huge_pages(std::size_t bytes)
{
    detail::unique_fd fd{::memfd_create("tokens", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB)};
    if (fd.get() < 0 || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
        fail("memory in huge pages");
    // Taking them now tells whether there are enough.
    if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
        fail("huge pages (./run lab --hugepages)");
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        fail("F_SEAL_SHRINK");
    return fd;
}

// Pages are taken in the order in which they are first touched.
detail::unique_fd scattered_pages(std::size_t bytes)
{
    constexpr std::size_t page = 4096;
    detail::unique_fd fd{::memfd_create("tokens", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    if (fd.get() < 0 || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
        fail("memory in small pages");
    std::vector<std::size_t> order(bytes / page);
    std::iota(order.begin(), order.end(), std::size_t{});
    std::shuffle(order.begin(), order.end(), std::mt19937{1});
    for (std::size_t const index : order)
        if (::pwrite(fd.get(), "", 1, static_cast<off_t>(index * page)) != 1)
            fail("memory in small pages");
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        fail("F_SEAL_SHRINK");
    return fd;
}

detail::unique_fd dmabuf_of(detail::unique_fd const& memory, std::size_t bytes)
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    auto result = detail::export_memfd(memory.get(), bytes, code, why);
    if (code)
        throw gpurx::system_error{code, why};
    return result;
}

void write_fault(char const* name, bool on)
{
    std::ofstream file{std::string{"/sys/kernel/debug/devmemsim/"} + interface + '/' + name};
    if (!(file << on << std::flush))
        fail(name);
}

}  // namespace

struct bound_memory::binding {
    detail::unique_fd memory;
    detail::unique_fd dmabuf;
    std::unique_ptr<detail::rx_binding> rx;
};

bound_memory::bound_memory(memory_kind kind, std::size_t bytes, std::uint32_t page_size, bool shared)
    : binding_{std::make_unique<binding>()}
{
    binding_->memory = kind == memory_kind::contiguous ? huge_pages(bytes) : scattered_pages(bytes);
    binding_->dmabuf = dmabuf_of(binding_->memory, bytes);

    std::array const queues{queue};
    detail::netdev::bind_rx what{::if_nametoindex(interface), queues, binding_->dmabuf.get(), page_size};
    if (shared)
        what.autorelease = false;
    binding_->rx = detail::bind_rx(interface, what);
}

bound_memory::~bound_memory() = default;

void split_headers()
{
    static_cast<void>(detail::kernel_nic{interface}.set_data_split(detail::ethtool::data_split::on));
}

void set_arrival(arrival how)
{
    detail::kernel_nic{interface}.set_feature(detail::ethtool::feature::hardware_gro, !how.segmented);
    write_fault("pack", how.packed);
}

}  // namespace bench
