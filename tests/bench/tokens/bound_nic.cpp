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

namespace detail = gpurx::detail;

namespace bench {
namespace {

[[noreturn]] void fail(char const* what)
{
    throw std::system_error{errno, std::system_category(), what};
}

detail::unique_fd huge_pages(std::size_t bytes)
{
    detail::unique_fd fd{::memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB)};
    if (fd.get() < 0 || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
        fail("memory in huge pages");
    // Taking them now tells whether there are enough. The end of an io_uring interrupts calls of its threads.
    while (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
        if (errno != EINTR)
            fail("huge pages (./run lab --hugepages)");
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        fail("F_SEAL_SHRINK");
    return fd;
}

// Pages are taken in the order in which they are first touched.
detail::unique_fd scattered_pages(std::size_t bytes)
{
    constexpr std::size_t page = 4096;
    detail::unique_fd fd{::memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
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
    auto result = detail::export_memfd(memory.get(), 0, bytes, code, why);
    if (code)
        throw gpurx::system_error{code, why};
    return result;
}

void write_fault(char const* name, unsigned value)
{
    std::ofstream file{std::string{"/sys/kernel/debug/devmemsim/"} + interface + '/' + name};
    if (!(file << value << std::flush))
        fail(name);
}

}  // namespace

dmabuf::dmabuf(memory_kind kind, std::size_t bytes)
    : memory_{kind == memory_kind::contiguous ? huge_pages(bytes) : scattered_pages(bytes)},
      fd_{dmabuf_of(memory_, bytes)},
      size_{bytes}
{}

std::unique_ptr<detail::rx_binding> bind(dmabuf const& memory, std::uint32_t page_size, bool shared)
{
    std::array const queues{queue};
    detail::netdev::bind_rx what{::if_nametoindex(interface), queues, memory.fd(), page_size};
    if (shared)
        what.autorelease = false;
    return detail::bind_rx(interface, what);
}

void split_headers()
{
    static_cast<void>(detail::kernel_nic{interface}.set_data_split(detail::ethtool::data_split::on));
}

void set_arrival(arrival how)
{
    detail::kernel_nic{interface}.set_feature(detail::ethtool::feature::hardware_gro, !how.segmented);
    write_fault("pack", how.packing);
}

}  // namespace bench
