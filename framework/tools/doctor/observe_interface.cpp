// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <libmnl/libmnl.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gpurx/error.hpp>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "lease/daemon_channel.hpp"
#include "lease/daemon_nic.hpp"
#include "lease/daemon_protocol.hpp"
#include "lease/leased_nic.hpp"
#include "nic/kernel_nic.hpp"
#include "nic/netlink.hpp"
#include "nic/process.hpp"
#include "observe.hpp"

namespace gpurx::doctor {

namespace {

// Attributes of if_link.h since Linux 5.14.
constexpr std::uint16_t parent_name = 56;
constexpr std::uint16_t parent_bus = 57;
// IFF_LOWER_UP of <linux/if.h>, beside which Asio's headers do not compile.
constexpr unsigned flag_lower_up = 1U << 16;

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
    link.carrier = (header.ifi_flags & flag_lower_up) != 0;
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

[[noreturn]] void fail_to_list()
{
    detail::fail(errno, "list", "interfaces");
}

// The interfaces of this network namespace, as rtnetlink lists them: what one message says of each. The other facts
// stay as they are by default. A PCI device has its address. Throws system_error.
std::vector<interface_facts> list_interfaces()
{
    std::unique_ptr<mnl_socket, closing> const socket{mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC)};
    if (!socket || mnl_socket_bind(socket.get(), 0, MNL_SOCKET_AUTOPID) != 0)
        fail_to_list();
    alignas(nlmsghdr) std::array<char, 32768> buffer{};
    auto* const request = mnl_nlmsg_put_header(buffer.data());
    request->nlmsg_type = RTM_GETLINK;
    request->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request->nlmsg_seq = 1;
    static_cast<ifinfomsg*>(mnl_nlmsg_put_extra_header(request, sizeof(ifinfomsg)))->ifi_family = AF_UNSPEC;
    if (mnl_socket_sendto(socket.get(), request, request->nlmsg_len) < 0)
        fail_to_list();

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
            fail_to_list();
    }
    return found;
}

refusal refusal_of(system_error const& error)
{
    auto const& said = error.why().kernel_message;
    return {error.code().value(), said.empty() ? error.code().message() : said};
}

// The answer to `question`; nothing where it is refused.
template <class Question>
auto answer_to(Question&& question) -> std::optional<decltype(question())>
{
    try {
        return question();
    } catch (system_error const&) {
        return std::nullopt;
    }
}

void observe_settings(interface_facts& interface)
{
    try {
        detail::kernel_nic nic{interface.name};
        interface.rings = answer_to([&nic] { return nic.rings(); });
        interface.ntuple = answer_to([&nic] { return nic.feature(detail::ethtool::feature::ntuple_filters); });
        interface.hardware_gro = answer_to([&nic] { return nic.feature(detail::ethtool::feature::hardware_gro); });
        interface.channels = answer_to([&nic] { return nic.channels(); });
        interface.rss_table = answer_to([&nic] { return nic.rss_table(); }).value_or(std::vector<std::uint32_t>{});
        interface.rss_contexts =
            answer_to([&nic] { return nic.rss_contexts(); }).value_or(std::vector<detail::ethtool::rss_context>{});
        interface.rules = answer_to([&nic] { return nic.rules(); });
        interface.queues =
            answer_to([&nic] { return nic.rx_queues(); }).value_or(std::vector<detail::netdev::rx_queue>{});
    } catch (system_error const& error) {
        interface.settings = refusal_of(error);
    }
}

// The kernel looks at the descriptor after the interface and its driver, and before it changes anything.
void probe_binding(interface_facts& interface)
{
    constexpr int none = -1;
    auto const leased = detail::is_lessee(interface.driver) ? detail::leased_queues(interface.queues)
                                                            : std::vector<detail::netdev::rx_queue>{};
    std::array const queue{leased.empty() ? 0U : leased.front().id};
    try {
        auto const bound =
            detail::bind_rx(interface.name, {.ifindex = interface.index, .queues = queue, .dmabuf_fd = none});
    } catch (system_error const& error) {
        interface.bind_probe = refusal_of(error);
    }
}

session_facts session_of(detail::journal_owner owner)
{
    auto const alive = detail::is_alive(owner.key);
    auto program = alive == true ? read_line(fmt::format("/proc/{}/comm", owner.key.pid)) : std::string{};
    return {std::move(owner), alive, std::move(program)};
}

void observe_journals(interface_facts& interface, observation const& what)
{
    try {
        if (auto sessions = journal_in(what.state_directory, interface.index, interface.journal_error)) {
            interface.session_changes = std::move(sessions->changes);
            for (auto& owner : sessions->owners)
                interface.sessions.push_back(session_of(std::move(owner)));
        }
        if (auto own = journal_in(what.own_directory, interface.index, interface.journal_error))
            interface.own_changes = std::move(own->changes);
    } catch (system_error const& error) {
        interface.journal_error = error.what();
    }
}

// gpurxd looks at its policy before it looks at the memory, of which there is none.
daemon_facts ask_daemon(std::string const& socket, std::string const& interface, std::uint64_t memory)
{
    daemon_facts result;
    try {
        detail::daemon_channel channel{socket, std::chrono::seconds{5}};
        channel.send(detail::encode(detail::open_request{.interface = interface, .probe_memory = memory}));
        auto const message = channel.receive();
        if (!message) {
            result.said = {ECONNRESET, "it disconnected"};
            return result;
        }
        auto const reply = detail::parse_daemon_reply(message->bytes);
        auto const* const said = std::get_if<detail::daemon_reply>(&reply);
        auto const* const refused = said != nullptr ? std::get_if<detail::refused_reply>(said) : nullptr;
        result.answered = true;
        result.said = {EPROTO, "an answer of another version"};
        if (refused != nullptr)
            result.said = {refused->code.value(), describe(refused->code, refused->why)};
        // The end: from then on the place that was taken for the question is free.
        static_cast<void>(channel.receive());
    } catch (system_error const& error) {
        result.said = refusal_of(error);
    }
    return result;
}

daemon_facts ask_daemon_about(std::string const& socket, std::string const& interface, std::uint64_t memory)
{
    auto result = ask_daemon(socket, interface, memory);
    // EPROTO: a gpurxd that is older than questions about memory.
    if (!result.answered || (result.said.error != EACCES && result.said.error != EPROTO))
        return result;
    auto without = ask_daemon(socket, interface, 0);
    if (result.said.error == EPROTO)
        return without;
    result.less_would_do = without.said.error == EBADF;
    return result;
}

void observe_interface(interface_facts& interface, observation const& what)
{
    interface.driver = detail::ethtool_ioctl{interface.index}.driver();
    if (interface.pci)
        interface.pci = observe_pci(interface.pci->address);
    observe_settings(interface);
    probe_binding(interface);
    observe_journals(interface, what);
    if (auto const socket = detail::find_daemon(); !socket.empty())
        interface.daemon = ask_daemon_about(socket, interface.name, what.wanted.memory);
    if (what.try_zcrx)
        interface.trial = try_zcrx(interface.name, what.wanted.memory, what.state_directory);
}

}  // namespace

std::optional<detail::journal> journal_in(std::string const& directory, unsigned index, std::string& failure)
{
    detail::device_key key;
    key.boot_id = detail::boot_id();
    key.ifindex = index;
    key.netns = detail::network_namespace();
    std::error_code error;
    for (auto const& entry : std::filesystem::directory_iterator{directory, error}) {
        if (entry.path().extension() != ".journal")
            continue;
        auto const path = entry.path().string();
        auto const text = read_text(path);
        auto const device = detail::parse_device(text);
        if (!device || !device->same_device(key))
            continue;
        auto found = detail::parse_journal(text);
        if (auto* const journal = std::get_if<detail::journal>(&found))
            return std::move(*journal);
        auto const& damage = std::get<detail::journal_damage>(found);
        failure = fmt::format("{} line {}: {}", path, damage.line, damage.what);
    }
    if (error && error != std::errc::no_such_file_or_directory)
        failure = fmt::format("{}: {}", directory, error.message());
    return std::nullopt;
}

facts observe(observation const& what)
{
    facts seen;
    seen.wanted = what.wanted;
    seen.interfaces = list_interfaces();
    if (!what.interface.empty()) {
        std::erase_if(seen.interfaces, [&what](auto const& one) { return one.name != what.interface; });
        if (seen.interfaces.empty())
            detail::fail(ENODEV, "find interface", what.interface, "ip link lists those of this network namespace");
    }
    seen.machine = observe_machine(what.state_directory);
    for (auto& interface : seen.interfaces)
        observe_interface(interface, what);
    if (what.gpu)
        seen.gpu = observe_gpu(*what.gpu);
    return seen;
}

}  // namespace gpurx::doctor
