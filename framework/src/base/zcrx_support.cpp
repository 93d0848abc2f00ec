// SPDX-License-Identifier: Apache-2.0
#include "zcrx_support.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <system_error>

#include <gpurx/error.hpp>

#include "io_ring.hpp"
#include "syscalls.hpp"

namespace gpurx::detail {

namespace {

using namespace uapi::zcrx;

std::optional<int> read_disabled()
{
    int value = 0;
    if (std::ifstream{"/proc/sys/kernel/io_uring_disabled"} >> value)
        return value;
    return std::nullopt;
}

void ask_what_there_is(zcrx_support& into) noexcept
{
    query_header header{};
    header.query_data = reinterpret_cast<std::uintptr_t>(&into.offers);
    header.query_op = query_zcrx;
    header.size = sizeof into.offers;
    into.query_error = sys::io_uring_register(-1, register_query, &header, 0) < 0 ? errno : 0;
    into.result = header.result;
}

}  // namespace

zcrx_support observe_zcrx()
{
    zcrx_support seen;
    seen.disabled = read_disabled();
    try {
        io_ring ring{1, 2, true};
        ask_what_there_is(seen);
        // The kernel looks at the right first, and then at a region that is not there.
        ifq_reg nothing{};
        seen.right_error = ring.register_with(register_ifq, &nothing, 1);
    } catch (system_error const& error) {
        seen.ring_error = error.code().value();
    }
    return seen;
}

zcrx_lack find_lack(zcrx_support const& of) noexcept
{
    switch (of.ring_error) {
        case 0:
            break;
        case EPERM:
        case EACCES:
            return of.disabled.value_or(0) != 0 ? zcrx_lack::permission : zcrx_lack::system_calls;
        case ENOSYS:
            return of.disabled ? zcrx_lack::system_calls : zcrx_lack::io_uring;
        case EINVAL:  // older than the flags of the ring
            return zcrx_lack::zcrx;
        default:
            return zcrx_lack::ring;
    }
    if (of.query_error != 0 || of.result != 0)
        return zcrx_lack::zcrx;
    if ((of.offers.area_flags & area_dmabuf) == 0)
        return zcrx_lack::dmabuf;
    if ((of.offers.register_flags & import) == 0 || of.offers.nr_ctrl_opcodes <= ctrl_export)
        return zcrx_lack::sharing;
    return of.right_error == EPERM ? zcrx_lack::net_admin : zcrx_lack::nothing;
}

std::string describe(zcrx_support const& of)
{
    switch (find_lack(of)) {
        case zcrx_lack::nothing:
            return {};
        case zcrx_lack::io_uring:
            return "this kernel has no io_uring (CONFIG_IO_URING)";
        case zcrx_lack::permission:
            return fmt::format(
                "kernel.io_uring_disabled is {}: {}", *of.disabled,
                *of.disabled == 1 ? "join the group kernel.io_uring_group, or have it set to 0" : "have it set to 0");
        case zcrx_lack::system_calls:
            return fmt::format(
                "the system calls of io_uring are filtered ({}): permit them in the seccomp profile of the container "
                "or service",
                of.ring_error == ENOSYS ? "ENOSYS" : "EPERM");
        case zcrx_lack::ring:
            return fmt::format("the kernel makes no ring of io_uring: {}",
                               std::generic_category().message(of.ring_error));
        case zcrx_lack::zcrx:
            return "this kernel has no zero-copy receive of io_uring to ask about: boot Linux 7.2 or later with "
                   "CONFIG_IO_URING_ZCRX";
        case zcrx_lack::dmabuf:
            return "the zero-copy receive of this kernel's io_uring takes no dmabuf: boot Linux 7.2 or later";
        case zcrx_lack::sharing:
            return "the zero-copy receive of this kernel's io_uring has no imports and exports, by which threads share "
                   "a queue: boot Linux 7.2 or later";
        case zcrx_lack::net_admin:
            return "this process has no CAP_NET_ADMIN in the initial user namespace, that of the host: run it there, "
                   "or start it by gpurx-run";
    }
    return {};
}

}  // namespace gpurx::detail
