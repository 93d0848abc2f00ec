// SPDX-License-Identifier: Apache-2.0
#include "endpoints.hpp"

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
#include <iterator>

#include "nic/flow_rule.hpp"
#include "nic/netlink.hpp"

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

using asio::ip::tcp;

template <class Version>
tcp::endpoint endpoint_of(void const* bytes, std::uint16_t port)
{
    typename Version::bytes_type copy;
    std::memcpy(copy.data(), bytes, copy.size());
    return detail::on_the_wire({Version{copy}, port});
}

// The words of an address, each as a number of this machine's order in eight digits; and a port.
std::optional<tcp::endpoint> parse_end(std::string_view text)
{
    constexpr std::size_t digits = 8;
    std::array<std::uint32_t, 4> words{};
    auto const colon = std::min(text.find(':'), text.size());
    auto const count = colon / digits;
    std::uint16_t port = 0;
    if (colon % digits != 0 || (count != 1 && count != words.size()) || colon == text.size() ||
        !take_number(text.substr(colon + 1), port, 16))
        return std::nullopt;
    for (std::size_t i = 0; i < count; ++i) {
        if (!take_number(text.substr(i * digits, digits), words[i], 16))
            return std::nullopt;
    }
    return count == 1 ? endpoint_of<asio::ip::address_v4>(words.data(), port)
                      : endpoint_of<asio::ip::address_v6>(words.data(), port);
}

std::optional<owned_socket> parse_line(std::string_view line)
{
    std::array<std::string_view, inode_column + 1> columns;
    for (auto& column : columns) {
        line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
        column = line.substr(0, line.find(' '));
        line.remove_prefix(column.size());
    }
    auto const local = parse_end(columns[local_column]);
    owned_socket found;
    if (!local || !take_number(columns[user_column], found.uid, 10) ||
        !take_number(columns[inode_column], found.inode, 10))
        return std::nullopt;
    found.local = *local;
    return found;
}

void append(std::vector<std::byte>& to, void const* from, std::size_t size)
{
    auto const before = to.size();
    to.resize(before + size);
    std::copy_n(static_cast<std::byte const*>(from), size, to.data() + before);
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
        // The target where the comparison fails: the next one, or beyond the end.
        auto const next = static_cast<std::uint16_t>((port_words + (is_last ? 1 : 0)) * word);
        filter.push_back({.code = INET_DIAG_BC_S_EQ, .yes = 2 * word, .no = next});
        filter.push_back({.code = 0, .yes = 0, .no = port});
        filter.push_back({.code = INET_DIAG_BC_JMP, .yes = word, .no = static_cast<std::uint16_t>((rest - 2) * word)});
        rest -= port_words;
    }
    return filter;
}

bool may_get(owned_socket const& one, tcp::endpoint const& local)
{
    if (one.inode == 0 || one.local.port() != local.port())
        return false;
    auto const bound = one.local.address();
    if (!bound.is_unspecified())
        return bound == local.address();
    return bound.is_v4() == local.address().is_v4() || (bound.is_v6() && !one.v6_only);
}

bool is_link_local(asio::ip::address const& address)
{
    return address.is_v6() && address.to_v6().is_link_local();
}

}  // namespace

bool is_own(std::span<host_address const> all, asio::ip::address const& address)
{
    auto const here = detail::on_the_wire({address, 0}).address();
    return std::ranges::find(all, here, &host_address::address) != all.end();
}

std::vector<asio::ip::tcp::endpoint> ends_of(std::span<host_address const> all, asio::ip::tcp::endpoint const& listener,
                                             bool also_v4, std::string_view interface)
{
    auto const bound = listener.address();
    if (!bound.is_unspecified())
        return {detail::on_the_wire(listener)};
    std::set<asio::ip::address> found;
    for (auto const& one : all) {
        bool const is_heard = one.address.is_v6() == bound.is_v6() || (one.address.is_v4() && also_v4);
        bool const comes_here = !is_link_local(one.address) || one.interface == interface;
        if (is_heard && comes_here && !one.address.is_loopback())
            found.insert(one.address);
    }
    std::vector<asio::ip::tcp::endpoint> ends;
    ends.reserve(found.size());
    for (auto const& address : found)
        ends.emplace_back(address, listener.port());
    return ends;
}

std::vector<std::byte> socket_request(int family, std::set<std::uint16_t> const& ports)
{
    // Since Linux 6.8 those that are bound and neither listen nor connect have a state of their own to ask for; older
    // kernels do not tell of them, and ignore the bit.
    constexpr std::uint32_t bound_inactive = 1U << 13;
    constexpr std::uint32_t all_states = 0xfff | bound_inactive;
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
    auto const port = ntohs(said.id.idiag_sport);
    detail::netlink::attributes const more{payload.subspan(sizeof said)};
    return owned_socket{.local = said.idiag_family == AF_INET
                                     ? endpoint_of<asio::ip::address_v4>(said.id.idiag_src, port)
                                     : endpoint_of<asio::ip::address_v6>(said.id.idiag_src, port),
                        .uid = said.idiag_uid,
                        .inode = said.idiag_inode,
                        .v6_only = more.u8(INET_DIAG_SKV6ONLY).value_or(0) != 0};
}

std::vector<owned_socket> sockets_in(std::string_view table, std::set<std::uint16_t> const& ports)
{
    std::vector<owned_socket> found;
    while (!table.empty()) {
        auto const line = table.substr(0, table.find('\n'));
        table.remove_prefix(std::min(line.size() + 1, table.size()));
        auto const one = parse_line(line);
        if (one && ports.contains(one->local.port()))
            found.push_back(*one);
    }
    return found;
}

std::optional<std::uint32_t> find_other_user(std::span<owned_socket const> all, tcp::endpoint const& local,
                                             std::uint32_t uid)
{
    auto const found =
        std::ranges::find_if(all, [&](auto const& one) { return one.uid != uid && may_get(one, local); });
    return found != all.end() ? std::optional{found->uid} : std::nullopt;
}

std::set<tcp::endpoint> find_shared(std::span<owned_socket const> all, std::set<tcp::endpoint> const& ends,
                                    std::uint32_t uid)
{
    std::set<tcp::endpoint> shared;
    std::ranges::copy_if(ends, std::inserter(shared, shared.end()),
                         [&](auto const& local) { return find_other_user(all, local, uid).has_value(); });
    return shared;
}

}  // namespace gpurx::gpurxd
