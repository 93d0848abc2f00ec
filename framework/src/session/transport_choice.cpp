// SPDX-License-Identifier: Apache-2.0
#include "transport_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <initializer_list>
#include <string>

#include "base/byte_size.hpp"

namespace gpurx {

namespace detail {

namespace {

struct meaning {
    std::string_view operation;
    transport_obstacle obstacle;
};

// Operations on the journal, whatever the error is.
constexpr std::array of_journal{
    "create state directory", "open state directory", "use state directory", "open lock",     "take lock",
    "open journal",           "read journal",         "write journal",       "remove journal"};

// Operations on the NIC that fail for another reason than missing rights.
constexpr std::array of_nic{
    meaning{"get rings", transport_obstacle::no_header_split},
    meaning{"set tcp-data-split", transport_obstacle::no_header_split},
    meaning{"set hds-thresh", transport_obstacle::no_header_split},
    meaning{"set rx-gro-hw", transport_obstacle::no_header_split},
    meaning{"lease", transport_obstacle::too_few_queues},
    meaning{"bind", transport_obstacle::too_few_queues},
    meaning{"set channels", transport_obstacle::too_few_queues},
    meaning{"bind-rx", transport_obstacle::not_bound},
    meaning{"register with io_uring", transport_obstacle::not_bound},
    meaning{"use leased queues", transport_obstacle::leased_queues},
};

// Operations that bind a dmabuf to queues.
constexpr std::array of_binding{"bind-rx", "register with io_uring"};

// Operations on the connection to gpurxd.
constexpr std::array of_daemon{"ask",          "understand", "connect to",          "send to",
                               "receive from", "wait for",   "set a time limit for"};

bool is_one_of(error_code code, std::initializer_list<int> errors) noexcept
{
    return code.category() == boost::system::system_category() &&
           std::ranges::find(errors, code.value()) != errors.end();
}

}  // namespace

transport_obstacle obstacle_of(error_code code, std::string_view operation, bool by_daemon) noexcept
{
    if (code == errc::memory_too_small)
        return transport_obstacle::memory_too_small;
    if (code == errc::queue_busy)
        return transport_obstacle::too_few_queues;
    if (code == errc::journal_invalid || std::ranges::find(of_journal, operation) != of_journal.end())
        return transport_obstacle::state_directory;
    if (by_daemon &&
        (is_one_of(code, {EACCES, EUSERS, EDQUOT}) || std::ranges::find(of_daemon, operation) != of_daemon.end()))
        return transport_obstacle::refused_by_gpurxd;
    if (is_one_of(code, {EPERM, EACCES}))
        return transport_obstacle::no_rights;
    if (is_one_of(code, {ENODEV, ENETDOWN}))
        return transport_obstacle::interface_down;
    auto const* const found = std::ranges::find(of_nic, operation, &meaning::operation);
    return found == of_nic.end() ? transport_obstacle::other : found->obstacle;
}

transport_obstacle obstacle_of(zcrx_lack lack) noexcept
{
    switch (lack) {
        case zcrx_lack::nothing:
            return transport_obstacle::none;
        case zcrx_lack::permission:
            return transport_obstacle::io_uring_disabled;
        case zcrx_lack::system_calls:
            return transport_obstacle::io_uring_filtered;
        case zcrx_lack::io_uring:
        case zcrx_lack::zcrx:
        case zcrx_lack::dmabuf:
        case zcrx_lack::sharing:
            return transport_obstacle::io_uring_lacks_zcrx;
        case zcrx_lack::net_admin:
            return transport_obstacle::no_rights;
        case zcrx_lack::ring:
            break;
    }
    return transport_obstacle::other;
}

std::vector<gpurx::transport> transports_to_try(gpurx::transport asked, bool allow_zcrx, bool array_tokens)
{
    using enum gpurx::transport;
    if (asked != automatic)
        return {asked};
    if (!allow_zcrx)
        return {devmem, copy};
    return array_tokens ? std::vector{devmem, zcrx, copy} : std::vector{zcrx, devmem, copy};
}

namespace {

// Of zcrx where nobody tried it, and automatic has taken another.
reason_against why_zcrx_was_not_tried(transport_choice const& made)
{
    using enum transport_obstacle;
    constexpr auto which = gpurx::transport::zcrx;
    auto const on_devmem = made.in_use == gpurx::transport::devmem;
    if (on_devmem && made.array_tokens)
        return {which, better_in_use, "devmem with array tokens is preferred"};
    if (!on_devmem)
        return {which, not_allowed, "rx_session_options::allow_zcrx is false"};
    return {which, not_allowed,
            "set rx_session_options::allow_zcrx to try it: without array tokens it takes 0.14x of devmem's "
            "instructions for queued data, but no hardware NIC has run it (gpurx-doctor checks it)"};
}

}  // namespace

reason_against why_not(gpurx::transport which, transport_choice const& made)
{
    if (which == made.in_use)
        return {which, transport_obstacle::none, {}};
    if (made.asked != gpurx::transport::automatic)
        return {which, transport_obstacle::not_asked_for,
                fmt::format("transport {} was requested", to_string(made.asked))};
    auto const tried = std::ranges::find(made.refused, which, &reason_against::which);
    if (tried != made.refused.end())
        return *tried;
    if (which == gpurx::transport::zcrx)
        return why_zcrx_was_not_tried(made);
    return {which, transport_obstacle::better_in_use,
            "zcrx costs less here, as this kernel has no array tokens for devmem"};
}

std::string explain_others(transport_choice const& made)
{
    std::string lines;
    for (auto const which : {gpurx::transport::devmem, gpurx::transport::zcrx}) {
        if (which != made.in_use)
            lines += fmt::format("{}: not in use: {}\n", to_string(which), why_not(which, made).text);
    }
    if (made.in_use != gpurx::transport::copy)
        lines += "copy: not in use: it works too, but the CPU would copy each byte\n";
    return lines;
}

std::unique_ptr<session_nic> lease_for(memory_state& memory, dmabuf_lease const& lease, bool& other, error_code& code,
                                       diagnostics& why)
{
    other = false;
    auto nic = lease(memory.dmabuf_fd(), code, why);
    auto const by_binding = std::ranges::find(of_binding, why.operation) != of_binding.end();
    if (nic || !by_binding || code == boost::system::errc::operation_not_permitted)
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

std::string_view to_string(transport_obstacle value) noexcept
{
    switch (value) {
        case transport_obstacle::none:
            return "none";
        case transport_obstacle::not_asked_for:
            return "not_asked_for";
        case transport_obstacle::better_in_use:
            return "better_in_use";
        case transport_obstacle::not_allowed:
            return "not_allowed";
        case transport_obstacle::no_interface:
            return "no_interface";
        case transport_obstacle::interface_down:
            return "interface_down";
        case transport_obstacle::memory_not_exported:
            return "memory_not_exported";
        case transport_obstacle::memory_too_small:
            return "memory_too_small";
        case transport_obstacle::no_rights:
            return "no_rights";
        case transport_obstacle::refused_by_gpurxd:
            return "refused_by_gpurxd";
        case transport_obstacle::state_directory:
            return "state_directory";
        case transport_obstacle::no_header_split:
            return "no_header_split";
        case transport_obstacle::too_few_queues:
            return "too_few_queues";
        case transport_obstacle::not_bound:
            return "not_bound";
        case transport_obstacle::flows_not_movable:
            return "flows_not_movable";
        case transport_obstacle::leased_queues:
            return "leased_queues";
        case transport_obstacle::io_uring_disabled:
            return "io_uring_disabled";
        case transport_obstacle::io_uring_filtered:
            return "io_uring_filtered";
        case transport_obstacle::io_uring_lacks_zcrx:
            return "io_uring_lacks_zcrx";
        case transport_obstacle::other:
            return "other";
    }
    return "unknown";
}

}  // namespace gpurx
