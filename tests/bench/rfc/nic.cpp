// SPDX-License-Identifier: Apache-2.0
#include "nic.hpp"

#include <fcntl.h>
#include <net/if.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

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
    detail::unique_fd fd{::memfd_create("rfc", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB)};
    if (fd.get() < 0 || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
        fail("memory in huge pages");
    // Taking them now tells whether there are enough.
    if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
        fail("huge pages (./run lab --hugepages)");
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

}  // namespace

dmabuf::dmabuf(std::size_t bytes) : memory_{huge_pages(bytes)}, fd_{dmabuf_of(memory_, bytes)}, size_{bytes} {}

std::unique_ptr<detail::rx_binding> bind(dmabuf const& memory)
{
    std::array const queues{queue};
    detail::netdev::bind_rx what{};
    what.ifindex = ::if_nametoindex(interface);
    what.queues = queues;
    what.dmabuf_fd = memory.fd();
    return detail::bind_rx(interface, what);
}

void split_headers()
{
    static_cast<void>(detail::kernel_nic{interface}.set_data_split(detail::ethtool::data_split::on));
}

}  // namespace bench
