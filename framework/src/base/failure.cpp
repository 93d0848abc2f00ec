// SPDX-License-Identifier: Apache-2.0
#include "failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <cerrno>

namespace gpurx::detail {

char const* advice_on(error_code code) noexcept
{
    if (code == errc::too_many_flows)
        return "close a flow, or raise rx_session_options::max_flows";
    if (code == boost::system::errc::operation_not_supported)
        return "the session belongs to the process that called fork(): open a session in this process";
    if (code == boost::system::errc::too_many_files_open)
        return "raise the limit of open files (ulimit -n)";
    if (code == asio::error::already_connected || code == asio::error::already_open)
        return "close the receiver first";
    if (code == asio::error::not_connected)
        return "first connect, or assign an accepted connection";
    if (code == errc::already_running)
        return "wait for the pending operation, or cancel it";
    if (code == errc::memory_locked_up)
        return "give more memory, or smaller receive buffers (rx_session_options::receive_memory)";
    if (code == errc::foreign_memory)
        return "find the program that changed the NIC's rules (ethtool -n)";
    if (code == errc::bad_destination)
        return "check the address and memory_span::kind()";
    if (code == errc::wrong_gpu)
        return "use a stream of the GPU that the destination is on";
    if (code == errc::unusable_stream)
        return "use an ordinary stream that is not being captured";
    if (code == errc::beyond_loan_limit)
        return "raise rx_session_options::loan_limit, or receive in parts (async_receive, async_read)";
    return "";
}

char const* advice_on_read(error_code code) noexcept
{
    if (code == boost::system::errc::invalid_argument)
        return "the sum of the destinations' sizes exceeds std::size_t: read them one after the other";
    if (code == boost::system::errc::bad_address)
        return "a destination is in memory that cannot be written: check the address and the size of each";
    return advice_on(code);
}

namespace {

struct advice {
    std::string_view operation;  // empty: any
    int error;
    std::string_view attribute;  // empty: any
    std::string_view text;
};

// Of the kernel, and of no header for programs (include/linux/errno.h): NVIDIA's driver answers so since 580.
constexpr int enotsupp = 524;

constexpr std::string_view no_mapping =
    "the exporter does not map its memory for this NIC (error 524 is ENOTSUPP); for a GPU's memory, NIC and "
    "GPU must be under one PCIe switch or root port (nvidia-smi topo -m: PIX or PXB), and neither access "
    "control (ACS) on the bridges between them nor an IOMMU may redirect the writes; option "
    "GrdmaPciTopoCheckOverride=1 of the module nvidia skips the check";

// The first that fits is given. Causes: net/core/{netdev-genl,devmem,netdev_rx_queue,page_pool_user}.c,
// net/ethtool/rings.c and io_uring/{io_uring,zcrx}.c of Linux 7.3.
constexpr std::array table{
    advice{"register with io_uring", EPERM, "",
           "run with CAP_NET_ADMIN in the initial user namespace, that of the host; transport devmem takes that of the "
           "network namespace"},
    advice{"import with io_uring", EPERM, "",
           "keep CAP_NET_ADMIN, in the initial user namespace, until each thread that receives has begun to"},
    advice{"make ring", EPERM, "",
           "permit io_uring: set kernel.io_uring_disabled to 0, and permit its system calls in the seccomp profile of "
           "the container or service"},
    advice{"", EPERM, "", "run with CAP_NET_ADMIN in the user namespace that owns the network namespace, or as root"},

    advice{"bind-rx", EINVAL, "queues.id", "the interface has no such RX queue: raise its channels, or ask for fewer"},
    advice{"bind-rx", EINVAL, "queues", "name at least one RX queue"},
    advice{"bind-rx", EINVAL, "rx-page-size", "rx_page_size must be a power of two"},
    advice{"bind-rx", EINVAL, "",
           "check that the descriptor is a dmabuf, that header split is on (tcp-data-split on, hds-thresh 0), and that "
           "every piece of the memory is contiguous and aligned for rx_page_size; pages larger than the kernel's need "
           "huge pages"},
    advice{
        "bind-rx", ERANGE, "",
        "the driver does not support this rx_page_size, or cannot bind this queue: try another rx_page_size or queue"},
    advice{"bind-rx", ENODEV, "", "the interface is gone, or its driver needs it up: set it up"},
    advice{"bind-rx", ENETDOWN, "", "set the interface up"},
    advice{"bind-rx", EAGAIN, "", "set the interface up"},
    advice{"bind-rx", EOPNOTSUPP, "rx-page-size", "this kernel has no rx-page-size: leave rx_page_size 0"},
    advice{"bind-rx", EOPNOTSUPP, "",
           "the driver cannot bind memory to its queues in this state, with this rx_page_size, or at all: devmem TCP "
           "needs queue management in the driver, and CONFIG_NET_DEVMEM"},
    advice{"bind-rx", EBADF, "", "the descriptor of the dmabuf is closed"},
    advice{"bind-rx", EEXIST, "",
           "the queue has other memory bound or an XDP program: end the program that uses it, or detach XDP"},
    advice{"bind-rx", EBUSY, "", "the queue serves an AF_XDP socket or is leased to a virtual device: end that use"},
    advice{"bind-rx", E2BIG, "", "the driver's page pools have another page size: choose another rx_page_size"},
    advice{"bind-rx", ENODATA, "",
           "the driver did not take pages from the memory: header split is not in effect (on mlx5, turn rx-gro-hw on)"},
    advice{"bind-rx", enotsupp, "", no_mapping},
    advice{"bind-rx", ENOMEM, "",
           "the exporter could not map the memory for this NIC, or the kernel has no memory left; a GPU's memory is "
           "mapped into its BAR1 (nvidia-smi -q -d MEMORY shows its free part): use a smaller memory, or a larger BAR "
           "(resizable BAR in the firmware)"},

    advice{"register with io_uring", EINVAL, "",
           "check that the descriptor is a dmabuf, all of it the session's memory, and that header split is on "
           "(tcp-data-split on, hds-thresh 0)"},
    advice{"register with io_uring", ERANGE, "",
           "the interface has no such RX queue, the driver does not support this rx_page_size, or the memory is not "
           "contiguous over it: larger pages need huge pages"},
    advice{"register with io_uring", ENODEV, "", "the interface is gone, or its driver needs it up: set it up"},
    advice{"register with io_uring", ENETDOWN, "", "set the interface up"},
    advice{"register with io_uring", EOPNOTSUPP, "",
           "the driver cannot bind memory to its queues in this state, with this rx_page_size, or at all: zcrx needs "
           "queue management in the driver"},
    advice{"register with io_uring", EBADF, "", "the descriptor of the dmabuf is closed"},
    advice{"register with io_uring", EEXIST, "",
           "the queue has other memory bound, a former owner that still ends, or an XDP program: end the program that "
           "uses it, or detach XDP"},
    advice{"register with io_uring", EBUSY, "",
           "the queue serves an AF_XDP socket or is leased to a virtual device: end that use"},
    advice{"register with io_uring", ENODATA, "",
           "the driver did not take pages from the memory: header split is not in effect (on mlx5, turn rx-gro-hw on)"},
    advice{"register with io_uring", enotsupp, "", no_mapping},
    advice{"register with io_uring", ENOMEM, "",
           "raise RLIMIT_MEMLOCK (ulimit -l), which the ring of returned pages counts against: 16 bytes a page; or the "
           "exporter could not map the memory for this NIC, or the kernel has no memory left"},
    advice{"make ring", ENOSYS, "",
           "permit the system calls of io_uring in the seccomp profile of the container or service, or boot a kernel "
           "with CONFIG_IO_URING"},
    advice{"make ring", ENOMEM, "", "raise RLIMIT_MEMLOCK (ulimit -l), or free memory"},
    advice{"make ring", EMFILE, "", "raise the limit of open files (ulimit -n)"},

    // Of what is on the other side of a lease, by somebody who sees only this one.
    advice{"bind-rx of a leased queue", EINVAL, "",
           "turn header split on at the queue's NIC (in its network namespace: ethtool -G NIC tcp-data-split on "
           "hds-thresh 0); check that the descriptor is a dmabuf, and that every piece of the memory is contiguous and "
           "aligned for rx_page_size"},
    advice{"bind-rx of a leased queue", EEXIST, "",
           "the queue's NIC has an XDP program, or the queue has other memory bound: end that use"},
    advice{"bind-rx of a leased queue", EBUSY, "", "an AF_XDP socket has the queue: end that use"},
    advice{"bind-rx of a leased queue", ENODEV, "", "set the queue's NIC up, in its network namespace"},
    advice{"bind-rx of a leased queue", ENETDOWN, "", "set the queue's NIC up, in its network namespace"},
    advice{"bind-rx of a leased queue", EAGAIN, "", "set the queue's NIC up, in its network namespace"},
    advice{"bind-rx of a leased queue", EOPNOTSUPP, "",
           "the driver of the queue's NIC cannot bind memory to it, or not with this rx_page_size; binding through a "
           "lease needs Linux 7.2 or later"},

    advice{"get rings", EOPNOTSUPP, "", "the interface cannot split headers: use another NIC"},
    advice{"set tcp-data-split", EOPNOTSUPP, "", "the NIC or its driver cannot split headers: use another NIC"},
    advice{"set tcp-data-split", EINVAL, "",
           "another setting prevents header split: detach XDP programs; on mlx5, turn rx-gro-hw on"},
    advice{"set hds-thresh", EINVAL, "", "another program holds the setting: end it"},
    advice{"get channels", EOPNOTSUPP, "", "the driver does not report its number of queues"},
    advice{"set channels", EOPNOTSUPP, "", "the NIC cannot have more queues: ask for fewer rx_queues"},
    advice{"set channels", EINVAL, "",
           "ethtool -l shows the maximum of the NIC; channels whose queues have memory bound or an AF_XDP socket must "
           "stay"},
    advice{"set ntuple-filters", EOPNOTSUPP, "", "the NIC cannot steer flows (ethtool -k: ntuple-filters)"},
    advice{"set rx-gro-hw", EOPNOTSUPP, "", "the NIC needs it for header split but does not turn it on: detach XDP"},
    advice{"set rss-table", EOPNOTSUPP, "", "the NIC cannot keep other traffic off a queue"},
    advice{"add rule", ENOSPC, "", "the NIC's table of rules is full: remove rules (ethtool -N IF delete ID)"},
    advice{"add rule", EEXIST, "", "another rule matches the same packets (ethtool -n IF): remove it"},
    advice{"add rule", EOPNOTSUPP, "", "the NIC cannot match TCP flows: check that ntuple-filters is on"},
    advice{"open", ENOENT, "", "the kernel does not have it: devmem TCP needs Linux 7.2 or later"},
};

}  // namespace

std::string advice_on(std::string_view operation, int error, std::string_view attribute)
{
    auto const fits = [&](advice const& one) {
        return one.error == error && (one.operation.empty() || one.operation == operation) &&
               (one.attribute.empty() || one.attribute == attribute);
    };
    auto const* const found = std::find_if(table.begin(), table.end(), fits);
    if (found != table.end())
        return std::string{found->text};
    return attribute.empty() ? std::string{} : fmt::format("the kernel refuses the attribute {}", attribute);
}

}  // namespace gpurx::detail
