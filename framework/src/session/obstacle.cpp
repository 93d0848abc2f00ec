// SPDX-License-Identifier: Apache-2.0
#include "obstacle.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <initializer_list>

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
    auto const found = std::ranges::find(of_nic, operation, &meaning::operation);
    return found == of_nic.end() ? devmem_obstacle::other : found->obstacle;
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
