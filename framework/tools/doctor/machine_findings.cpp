// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <system_error>

#include "base/byte_size.hpp"
#include "findings.hpp"

namespace gpurx::doctor {

namespace {

using detail::mebibyte;
using detail::size_text;

// The oldest kernel on which gpurx was tried.
constexpr unsigned oldest_tried[]{7, 2};

bool is_older_than_tried(std::string_view release)
{
    unsigned parts[2]{};
    auto const* at = release.data();
    auto const* const end = release.data() + release.size();
    for (auto& part : parts) {
        auto const [stopped, error] = std::from_chars(at, end, part);
        if (error != std::errc{})
            return false;
        at = stopped != end ? stopped + 1 : end;
    }
    return parts[0] < oldest_tried[0] || (parts[0] == oldest_tried[0] && parts[1] < oldest_tried[1]);
}

finding check_kernel(kernel_facts const& kernel)
{
    finding found{.level = severity::fine, .topic = "kernel", .what = "the kernel has device memory TCP"};
    bool const configured = kernel.config.contains("NET_DEVMEM");
    found.evidence = kernel.release;
    if (!kernel.config_file.empty()) {
        found.evidence +=
            fmt::format(", CONFIG_NET_DEVMEM {} in {}", configured ? "is set" : "is not set", kernel.config_file);
    }
    if (kernel.has_bind_rx == false) {
        found.level = severity::blocking;
        found.what = "the kernel cannot bind memory to the queues of a NIC: boot Linux 7.2 or later";
    } else if (!kernel.config_file.empty() && !configured) {
        found.level = severity::blocking;
        found.what = "the kernel was built without device memory TCP: boot one with CONFIG_NET_DEVMEM";
    } else if (!kernel.has_bind_rx) {
        found.level = severity::note;
        found.what = "the kernel's device memory TCP cannot be determined here";
    } else if (is_older_than_tried(kernel.release)) {
        found.level = severity::note;
        found.what = "the kernel has device memory TCP, but gpurx is not tested on kernels older than 7.2";
    }
    return found;
}

finding check_tokens(kernel_facts const& kernel)
{
    if (kernel.has_array_tokens)
        return {
            .topic = "tokens", .what = "pages are returned by array tokens", .evidence = "bind-rx takes autorelease"};
    return {
        .level = severity::note,
        .topic = "tokens",
        .what = "pages are returned by xarray tokens, which cost more than the array tokens of gpurx's kernel patches",
        .evidence = "bind-rx takes no autorelease"};
}

finding check_page_sizes(kernel_facts const& kernel)
{
    if (kernel.has_page_sizes)
        return {.topic = "page-size",
                .what = "the NIC's pages may be larger than the system's, if its driver supports that",
                .evidence = "bind-rx takes rx-page-size"};
    return {.level = severity::note,
            .topic = "page-size",
            .what = "the NIC's pages have the system's size: this kernel supports no other",
            .evidence = "bind-rx takes no rx-page-size"};
}

finding check_udmabuf(machine_facts const& machine, bool with_gpu, requirements const& wanted)
{
    auto const& memory = machine.memory;
    auto const& kernel = machine.kernel;
    auto const severe = with_gpu ? severity::note : severity::blocking;
    auto const error = memory.udmabuf_error.value_or(0);
    if (error == 0 && memory.udmabuf_size_limit && *memory.udmabuf_size_limit < wanted.memory) {
        return {.level = severe,
                .topic = "udmabuf",
                .what = "host memory of this size cannot be exported to a NIC",
                .evidence = fmt::format("{} of memory, and a udmabuf has {} at most", size_text(wanted.memory),
                                        size_text(*memory.udmabuf_size_limit)),
                .command = fmt::format("echo {} > /sys/module/udmabuf/parameters/size_limit_mb",
                                       (wanted.memory + mebibyte - 1) / mebibyte)};
    }
    if (error == 0)
        return {.topic = "udmabuf", .what = "host memory can be exported to a NIC", .evidence = "/dev/udmabuf opens"};

    finding found{.level = severe, .topic = "udmabuf", .what = "host memory cannot be exported to a NIC: "};
    found.evidence = fmt::format("/dev/udmabuf: {}", error == EACCES || error == EPERM ? "permission denied"
                                                     : error == ENOENT                 ? "no such file"
                                                                       : fmt::format("error {}", error));
    if (error == EACCES || error == EPERM) {
        found.what += "this user may not open /dev/udmabuf";
        found.command = "setfacl -m u:$USER:rw /dev/udmabuf";
    } else if (!kernel.config_file.empty() && !kernel.config.contains("UDMABUF")) {
        found.what += "this kernel has no UDMABUF: boot one with CONFIG_UDMABUF";
        found.evidence += fmt::format(", CONFIG_UDMABUF is not set in {}", kernel.config_file);
    } else {
        found.what += "there is no /dev/udmabuf (for a container, pass --device /dev/udmabuf)";
    }
    return found;
}

finding check_huge_pages(host_memory_facts const& memory, requirements const& wanted)
{
    constexpr std::uint64_t huge_page = 2 * mebibyte;
    auto const needed = (wanted.memory + huge_page - 1) / huge_page;
    auto evidence = fmt::format("{} free, {} needed for {}", memory.free_huge_pages, needed, size_text(wanted.memory));
    if (memory.free_huge_pages >= needed)
        return {.topic = "huge-pages", .what = "host memory will be contiguous", .evidence = std::move(evidence)};
    return {.level = severity::note,
            .topic = "huge-pages",
            .what = "host memory will consist of single pages, so the NIC cannot use larger pages",
            .evidence = std::move(evidence),
            .command = fmt::format("sysctl vm.nr_hugepages={}", needed)};
}

finding check_rights(process_facts const& process)
{
    if (process.net_admin)
        return {.topic = "rights", .what = "this process may configure NICs", .evidence = "CAP_NET_ADMIN"};
    constexpr char evidence[] = "no CAP_NET_ADMIN in the user namespace that owns the network namespace";
    if (!process.daemon.empty())
        return {.topic = "rights",
                .what = fmt::format("this process may not configure NICs: gpurxd at {} does it", process.daemon),
                .evidence = evidence};
    return {
        .level = severity::blocking,
        .topic = "rights",
        .what = "this process may not configure NICs: run it as root, give the program the capability, or start gpurxd",
        .evidence = evidence,
        .command = "setcap cap_net_admin+ep PROGRAM"};
}

// The command that removes it; empty: none does.
std::string command_against(detail::zcrx_support const& seen)
{
    switch (detail::find_lack(seen)) {
        case detail::zcrx_lack::permission:
            return "sysctl kernel.io_uring_disabled=0";
        case detail::zcrx_lack::net_admin:
            return "setcap cap_net_admin+ep PROGRAM";
        default:
            return {};
    }
}

std::string evidence_of(detail::zcrx_support const& seen)
{
    if (seen.ring_error != 0)
        return fmt::format("io_uring_setup answers {}{}", std::generic_category().message(seen.ring_error),
                           seen.disabled ? fmt::format(", kernel.io_uring_disabled is {}", *seen.disabled) : "");
    if (seen.query_error != 0 || seen.result != 0)
        return fmt::format("IORING_REGISTER_QUERY answers {}",
                           std::generic_category().message(seen.query_error != 0 ? seen.query_error : -seen.result));
    return fmt::format(
        "IORING_REGISTER_QUERY: register flags {:#x}, area flags {:#x}, {} operations; a registration of "
        "nothing answers {}",
        seen.offers.register_flags, seen.offers.area_flags, seen.offers.nr_ctrl_opcodes,
        std::generic_category().message(seen.right_error));
}

// No session needs it, so it never blocks.
finding check_zcrx(machine_facts const& machine)
{
    constexpr char topic[] = "zcrx";
    auto const& seen = machine.zcrx;
    if (auto const lack = detail::describe(seen); !lack.empty())
        return {.level = severity::note,
                .topic = topic,
                .what = "transport zcrx is not possible: " + lack,
                .evidence = evidence_of(seen),
                .command = command_against(seen)};
    return {.topic = topic,
            .what = machine.kernel.has_array_tokens
                        ? "transport zcrx is possible; devmem has array tokens, and is preferred"
                        : "transport zcrx is possible, and costs less than devmem: set rx_session_options::allow_zcrx",
            .evidence = evidence_of(seen)};
}

}  // namespace

std::string_view to_string(severity value) noexcept
{
    switch (value) {
        case severity::fine:
            return "ok";
        case severity::note:
            return "note";
        case severity::degraded:
            return "degraded";
        case severity::blocking:
            return "blocking";
    }
    return {};
}

std::string_view to_string(verdict value) noexcept
{
    switch (value) {
        case verdict::ready:
            return "ready";
        case verdict::degraded:
            return "degraded";
        case verdict::not_possible:
            return "not possible";
    }
    return {};
}

verdict judge(std::vector<finding> const& findings) noexcept
{
    auto worst = severity::fine;
    for (auto const& found : findings)
        worst = std::max(worst, found.level);
    if (worst == severity::blocking)
        return verdict::not_possible;
    return worst == severity::degraded ? verdict::degraded : verdict::ready;
}

std::vector<finding> check_machine(machine_facts const& machine, bool with_gpu, requirements const& wanted)
{
    std::vector<finding> found{check_kernel(machine.kernel)};
    if (machine.kernel.has_bind_rx == true) {
        found.push_back(check_tokens(machine.kernel));
        found.push_back(check_page_sizes(machine.kernel));
    }
    found.push_back(check_udmabuf(machine, with_gpu, wanted));
    if (!with_gpu && machine.memory.udmabuf_error == 0)
        found.push_back(check_huge_pages(machine.memory, wanted));
    found.push_back(check_rights(machine.process));
    found.push_back(check_zcrx(machine));
    if (machine.process.net_admin && !machine.process.state_error.empty()) {
        found.push_back({.level = severity::blocking,
                         .topic = "state-directory",
                         .what = "sessions cannot keep their journals, so they change no NIC",
                         .evidence = machine.process.state_error,
                         .command = "install -d -m 0700 -o $USER /run/gpurx"});
    }
    return found;
}

}  // namespace gpurx::doctor
