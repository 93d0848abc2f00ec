// SPDX-License-Identifier: Apache-2.0
#include "port_users.hpp"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

namespace gpurx::gpurxd {

namespace {

// Of a line: number, local address and port, remote ones, state, queues, timer, retransmits, user, timeout, inode.
constexpr std::size_t local_column = 1;
constexpr std::size_t user_column = 7;
constexpr std::size_t inode_column = 9;

template <class Number>
bool take_number(std::string_view text, Number& value, int base)
{
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    return error == std::errc{} && end == text.data() + text.size();
}

std::optional<owned_socket> parse_line(std::string_view line)
{
    std::array<std::string_view, inode_column + 1> columns;
    for (auto& column : columns) {
        line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
        column = line.substr(0, line.find(' '));
        line.remove_prefix(column.size());
    }
    auto const local = columns[local_column];
    auto const colon = local.find(':');
    owned_socket found;
    if (colon == std::string_view::npos || !take_number(local.substr(colon + 1), found.port, 16) ||
        !take_number(columns[user_column], found.uid, 10) || !take_number(columns[inode_column], found.inode, 10))
        return std::nullopt;
    return found;
}

void append(std::vector<std::byte>& to, void const* from, std::size_t size)
{
    auto const* const begin = static_cast<std::byte const*>(from);
    to.insert(to.end(), begin, begin + size);
}

// A port takes three words: the comparison, the port, and a jump to the end, which is to accept. A jump beyond the end
// is to refuse.
constexpr std::size_t port_words = 3;

std::vector<inet_diag_bc_op> filter_for(std::set<std::uint16_t> const& ports)
{
    constexpr auto word = static_cast<std::uint8_t>(sizeof(inet_diag_bc_op));
    std::vector<inet_diag_bc_op> filter;
    auto rest = ports.size() * port_words;
    for (auto const port : ports) {
        auto const is_last = rest == port_words;
        // Where the comparison fails: at the next one, or beyond the end.
        auto const next = static_cast<std::uint16_t>((port_words + (is_last ? 1 : 0)) * word);
        filter.push_back({.code = INET_DIAG_BC_S_EQ, .yes = 2 * word, .no = next});
        filter.push_back({.code = 0, .yes = 0, .no = port});
        filter.push_back({.code = INET_DIAG_BC_JMP, .yes = word, .no = static_cast<std::uint16_t>((rest - 2) * word)});
        rest -= port_words;
    }
    return filter;
}

}  // namespace

std::vector<std::byte> socket_request(int family, std::set<std::uint16_t> const& ports)
{
    constexpr std::uint32_t all_states = 0xfff;
    auto const filter = filter_for(ports);
    auto const filter_size = filter.size() * sizeof(inet_diag_bc_op);
    inet_diag_req_v2 what{};
    what.sdiag_family = static_cast<std::uint8_t>(family);
    what.sdiag_protocol = IPPROTO_TCP;
    what.idiag_states = all_states & ~(1U << TCP_TIME_WAIT);
    nlattr const attribute{.nla_len = static_cast<std::uint16_t>(sizeof(nlattr) + filter_size),
                           .nla_type = INET_DIAG_REQ_BYTECODE};
    nlmsghdr header{};
    header.nlmsg_len = static_cast<std::uint32_t>(sizeof header + sizeof what + sizeof attribute + filter_size);
    header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    std::vector<std::byte> message;
    append(message, &header, sizeof header);
    append(message, &what, sizeof what);
    append(message, &attribute, sizeof attribute);
    append(message, filter.data(), filter_size);
    return message;
}

std::optional<owned_socket> read_socket(std::span<std::byte const> payload)
{
    inet_diag_msg said{};
    if (payload.size() < sizeof said)
        return std::nullopt;
    std::memcpy(&said, payload.data(), sizeof said);
    return owned_socket{ntohs(said.id.idiag_sport), said.idiag_uid, said.idiag_inode};
}

std::vector<owned_socket> sockets_in(std::string_view table, std::set<std::uint16_t> const& ports)
{
    std::vector<owned_socket> found;
    while (!table.empty()) {
        auto const line = table.substr(0, table.find('\n'));
        table.remove_prefix(std::min(line.size() + 1, table.size()));
        auto const one = parse_line(line);
        if (one && ports.contains(one->port))
            found.push_back(*one);
    }
    return found;
}

std::optional<std::uint32_t> find_other_user(std::span<owned_socket const> all, std::uint16_t port, std::uint32_t uid)
{
    auto const found = std::ranges::find_if(
        all, [&](auto const& one) { return one.port == port && one.inode != 0 && one.uid != uid; });
    return found != all.end() ? std::optional{found->uid} : std::nullopt;
}

std::set<std::uint16_t> find_shared_ports(std::span<owned_socket const> all, std::set<std::uint16_t> const& ports,
                                          std::uint32_t uid)
{
    std::set<std::uint16_t> shared;
    for (auto const& one : all) {
        if (one.inode != 0 && one.uid != uid && ports.contains(one.port))
            shared.insert(one.port);
    }
    return shared;
}

}  // namespace gpurx::gpurxd
