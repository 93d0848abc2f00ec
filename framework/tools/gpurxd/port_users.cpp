// SPDX-License-Identifier: Apache-2.0
#include "port_users.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace gpurx::gpurxd {

namespace {

// Of a line: number, local address and port, remote ones, state, queues, timer, retransmits, user, timeout, inode.
constexpr std::size_t local_column = 1;
constexpr std::size_t user_column = 7;
constexpr std::size_t inode_column = 9;

struct owned_socket {
    std::uint16_t port = 0;
    std::uint32_t uid = 0;
    std::uint64_t inode = 0;
};

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

// Calls use(socket) for each that is somebody's, and not this user's.
template <class Use>
void for_each_of_others(std::string_view table, std::uint32_t uid, Use use)
{
    while (!table.empty()) {
        auto const line = table.substr(0, table.find('\n'));
        table.remove_prefix(std::min(line.size() + 1, table.size()));
        auto const found = parse_line(line);
        if (found && found->inode != 0 && found->uid != uid)
            use(*found);
    }
}

}  // namespace

std::optional<std::uint32_t> find_other_user(std::string_view table, std::uint16_t port, std::uint32_t uid)
{
    std::optional<std::uint32_t> other;
    for_each_of_others(table, uid, [&](owned_socket const& found) {
        if (found.port == port && !other)
            other = found.uid;
    });
    return other;
}

std::set<std::uint16_t> find_shared_ports(std::string_view table, std::set<std::uint16_t> const& ports,
                                          std::uint32_t uid)
{
    std::set<std::uint16_t> shared;
    for_each_of_others(table, uid, [&](owned_socket const& found) {
        if (ports.contains(found.port))
            shared.insert(found.port);
    });
    return shared;
}

}  // namespace gpurx::gpurxd
