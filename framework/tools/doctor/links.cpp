// SPDX-License-Identifier: Apache-2.0
#include "links.hpp"

#include <libmnl/libmnl.h>
#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/failure.hpp"
#include "nic/netlink.hpp"

namespace gpurx::doctor {

namespace {

// Of if_link.h since Linux 5.14.
constexpr std::uint16_t parent_name = 56;
constexpr std::uint16_t parent_bus = 57;

std::vector<std::string> alternative_names(detail::netlink::attributes const& said)
{
    std::vector<std::string> names;
    said.nested(IFLA_PROP_LIST).for_each([&names](detail::netlink::attribute const& one) {
        if (one.type() == IFLA_ALT_IFNAME)
            names.emplace_back(one.text());
    });
    return names;
}

interface_facts read_link(nlmsghdr const& message)
{
    namespace nl = detail::netlink;
    std::span const payload{static_cast<std::byte const*>(mnl_nlmsg_get_payload(&message)),
                            mnl_nlmsg_get_payload_len(&message)};
    interface_facts link;
    if (payload.size() < sizeof(ifinfomsg))
        return link;
    auto const& header = *reinterpret_cast<ifinfomsg const*>(payload.data());
    link.index = static_cast<unsigned>(header.ifi_index);
    link.up = (header.ifi_flags & IFF_UP) != 0;
    link.carrier = (header.ifi_flags & IFF_LOWER_UP) != 0;
    link.loopback = (header.ifi_flags & IFF_LOOPBACK) != 0;

    nl::attributes const said{payload.subspan(NLMSG_ALIGN(sizeof(ifinfomsg)))};
    auto const text = [](nl::attributes const& from, std::uint16_t type) {
        auto const found = from.find(type);
        return found ? std::string{found->text()} : std::string{};
    };
    link.name = text(said, IFLA_IFNAME);
    link.alias = text(said, IFLA_IFALIAS);
    link.alternative_names = alternative_names(said);
    link.mtu = said.u32(IFLA_MTU).value_or(0);
    link.kind = text(said.nested(IFLA_LINKINFO), IFLA_INFO_KIND);
    link.xdp = said.nested(IFLA_XDP).u8(IFLA_XDP_ATTACHED).value_or(XDP_ATTACHED_NONE) != XDP_ATTACHED_NONE;
    if (text(said, parent_bus) == "pci")
        link.pci.emplace().address = text(said, parent_name);
    return link;
}

struct closing {
    void operator()(mnl_socket* socket) const noexcept { mnl_socket_close(socket); }
};

[[noreturn]] void refuse()
{
    detail::fail(errno, "list", "interfaces");
}

}  // namespace

std::vector<interface_facts> list_interfaces()
{
    std::unique_ptr<mnl_socket, closing> const socket{mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC)};
    if (!socket || mnl_socket_bind(socket.get(), 0, MNL_SOCKET_AUTOPID) != 0)
        refuse();
    alignas(nlmsghdr) std::array<char, 32768> buffer{};
    auto* const request = mnl_nlmsg_put_header(buffer.data());
    request->nlmsg_type = RTM_GETLINK;
    request->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request->nlmsg_seq = 1;
    static_cast<ifinfomsg*>(mnl_nlmsg_put_extra_header(request, sizeof(ifinfomsg)))->ifi_family = AF_UNSPEC;
    if (mnl_socket_sendto(socket.get(), request, request->nlmsg_len) < 0)
        refuse();

    std::vector<interface_facts> found;
    auto const take = [](nlmsghdr const* message, void* into) {
        if (message->nlmsg_type == RTM_NEWLINK)
            static_cast<std::vector<interface_facts>*>(into)->push_back(read_link(*message));
        return MNL_CB_OK;
    };
    for (int status = MNL_CB_OK; status > MNL_CB_STOP;) {
        auto const size = mnl_socket_recvfrom(socket.get(), buffer.data(), buffer.size());
        status = size < 0 ? MNL_CB_ERROR
                          : mnl_cb_run(buffer.data(), static_cast<std::size_t>(size), 1,
                                       mnl_socket_get_portid(socket.get()), take, &found);
        if (status < 0)
            refuse();
    }
    return found;
}

}  // namespace gpurx::doctor
