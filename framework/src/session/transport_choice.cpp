// SPDX-License-Identifier: Apache-2.0
#include "transport_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <initializer_list>

#include "base/byte_size.hpp"

namespace gpurx {

namespace detail {

namespace {

struct meaning {
    std::string_view operation;
    devmem_obstacle obstacle;
};

// Operations on the journal, whatever the error is.
constexpr std::array of_journal{
    "create state directory", "open state directory", "use state directory", "open lock",     "take lock",
    "open journal",           "read journal",         "write journal",       "remove journal"};

// Operations on the NIC that fail for another reason than missing rights.
constexpr std::array of_nic{
    meaning{"get rings", devmem_obstacle::no_header_split},
    meaning{"set tcp-data-split", devmem_obstacle::no_header_split},
    meaning{"set hds-thresh", devmem_obstacle::no_header_split},
    meaning{"set rx-gro-hw", devmem_obstacle::no_header_split},
    meaning{"lease", devmem_obstacle::too_few_queues},
    meaning{"bind", devmem_obstacle::too_few_queues},
    meaning{"set channels", devmem_obstacle::too_few_queues},
    meaning{"bind-rx", devmem_obstacle::not_bound},
};

// Operations on the connection to gpurxd.
constexpr std::array of_daemon{"ask",          "understand", "connect to",          "send to",
                               "receive from", "wait for",   "set a time limit for"};

bool is_one_of(error_code code, std::initializer_list<int> errors) noexcept
{
    return code.category() == boost::system::system_category() &&
           std::ranges::find(errors, code.value()) != errors.end();
}

}  // namespace

devmem_obstacle obstacle_of(error_code code, std::string_view operation, bool by_daemon) noexcept
{
    if (code == errc::memory_too_small)
        return devmem_obstacle::memory_too_small;
    if (code == errc::queue_busy)
        return devmem_obstacle::too_few_queues;
    if (code == errc::journal_invalid || std::ranges::find(of_journal, operation) != of_journal.end())
        return devmem_obstacle::state_directory;
    if (by_daemon &&
        (is_one_of(code, {EACCES, EUSERS, EDQUOT}) || std::ranges::find(of_daemon, operation) != of_daemon.end()))
        return devmem_obstacle::refused_by_gpurxd;
    if (is_one_of(code, {EPERM, EACCES}))
        return devmem_obstacle::no_rights;
    if (is_one_of(code, {ENODEV, ENETDOWN}))
        return devmem_obstacle::interface_down;
    auto const* const found = std::ranges::find(of_nic, operation, &meaning::operation);
    return found == of_nic.end() ? devmem_obstacle::other : found->obstacle;
}

std::unique_ptr<session_nic> lease_for(memory_state& memory, dmabuf_lease const& lease, bool& other, error_code& code,
                                       diagnostics& why)
{
    other = false;
    auto nic = lease(memory.dmabuf_fd(), code, why);
    if (nic || why.operation != "bind-rx" || code == boost::system::errc::operation_not_permitted)
        return nic;
    auto const second = memory.other_dmabuf_fd();
    if (second < 0)
        return nullptr;
    error_code refused;
    diagnostics reason;
    nic = lease(second, refused, reason);
    other = nic != nullptr;
    if (other)
        code.clear();
    return nic;
}

std::string explain_tokens(bool in_kernel, std::uint64_t bytes, std::size_t page_size)
{
    if (!in_kernel)
        return "xarray tokens, as this kernel has no array tokens";
    if (fits_array_tokens(bytes, page_size))
        return "array tokens, which cost less to return";
    return fmt::format(
        "xarray tokens, as array tokens name at most {} pages and {} have {} of {}: larger pages make fewer",
        most_array_token_pages, size_text(bytes), bytes / page_size, size_text(page_size));
}

}  // namespace detail

std::string_view to_string(devmem_obstacle value) noexcept
{
    switch (value) {
        case devmem_obstacle::none:
            return "none";
        case devmem_obstacle::copy_asked_for:
            return "copy_asked_for";
        case devmem_obstacle::no_interface:
            return "no_interface";
        case devmem_obstacle::interface_down:
            return "interface_down";
        case devmem_obstacle::memory_not_exported:
            return "memory_not_exported";
        case devmem_obstacle::memory_too_small:
            return "memory_too_small";
        case devmem_obstacle::no_rights:
            return "no_rights";
        case devmem_obstacle::refused_by_gpurxd:
            return "refused_by_gpurxd";
        case devmem_obstacle::state_directory:
            return "state_directory";
        case devmem_obstacle::no_header_split:
            return "no_header_split";
        case devmem_obstacle::too_few_queues:
            return "too_few_queues";
        case devmem_obstacle::not_bound:
            return "not_bound";
        case devmem_obstacle::flows_not_movable:
            return "flows_not_movable";
        case devmem_obstacle::other:
            return "other";
    }
    return "unknown";
}

}  // namespace gpurx
