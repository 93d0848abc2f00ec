// SPDX-License-Identifier: Apache-2.0
#include "kernel_nic.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>

#include <cerrno>
#include <utility>

#include "advice.hpp"
#include "failure.hpp"
#include "uapi.hpp"

namespace gpurx::detail {

namespace {

[[noreturn]] void refuse(netlink::verdict said, std::string operation, std::string object,
                         std::string_view attribute = {})
{
    auto advice = advice_on(operation, said.error, attribute);
    throw system_error{errno_code(said.error),
                       {std::move(operation), std::move(object), std::move(said.text), std::move(advice)}};
}

unsigned index_of(std::string_view interface)
{
    unsigned const index = ::if_nametoindex(std::string{interface}.c_str());
    if (index == 0)
        fail(errno, "find interface", std::string{interface}, "ip link lists those of this network namespace");
    return index;
}

netlink::family resolve(netlink::socket& via, char const* name)
{
    std::optional<netlink::family> found;
    auto request = netlink::family_request(name);
    auto const said = via.exchange(
        request, [&found](netlink::generic_message const& answer) { found = netlink::read_family(answer.attrs); });
    if (said.error != 0)
        refuse(said, "open", fmt::format("netlink family {}", name));
    if (!found)
        fail(EPROTO, "open", fmt::format("netlink family {}", name));
    return *std::move(found);
}

class kernel_binding final : public rx_binding {
  public:
    kernel_binding(netlink::socket socket, std::uint32_t id) noexcept : socket_{std::move(socket)}, id_{id} {}

    [[nodiscard]] std::uint32_t id() const noexcept override { return id_; }

  private:
    netlink::socket socket_;  // the kernel unbinds when it is closed
    std::uint32_t id_;
};

std::unique_ptr<rx_binding> bind_with(netlink::socket via, std::uint16_t family, std::string_view interface,
                                      netdev::bind_rx const& what)
{
    auto const object =
        what.queues.empty()
            ? fmt::format("{} without a queue", interface)
            : fmt::format("{} queue{} {}", interface, what.queues.size() == 1 ? "" : "s", fmt::join(what.queues, ", "));
    std::optional<std::uint32_t> id;
    auto request = netdev::bind_rx_request(family, what);
    auto const said = via.exchange(
        request, [&id](netlink::generic_message const& answer) { id = netdev::read_binding(answer.attrs); });
    if (said.error != 0) {
        auto const attribute = netdev::bind_rx_attribute(request.bytes(), said);
        refuse(said, "bind-rx", object, attribute);
    }
    if (!id)
        fail(EPROTO, "bind-rx", object);
    return std::make_unique<kernel_binding>(std::move(via), *id);
}

}  // namespace

kernel_nic::kernel_nic(std::string_view interface)
    : index_{index_of(interface)},
      ethtool_{resolve(socket_, uapi::ethtool::family_name)},
      netdev_{resolve(socket_, uapi::netdev::family_name)},
      ioctl_{index_}
{}

std::string kernel_nic::name() const
{
    return ioctl_.name().value_or(fmt::format("interface number {}", index_));
}

void kernel_nic::ask(netlink::request what, std::string_view operation, netlink::socket::on_answer const& answer,
                     std::function<void()> const& restart)
{
    auto const said = socket_.exchange(what, answer, restart);
    if (said.error != 0)
        refuse(said, std::string{operation}, name());
}

ethtool::rings kernel_nic::rings()
{
    ethtool::rings result;
    ask(ethtool::rings_request(ethtool_.id, index_), "get rings",
        [&result](netlink::generic_message const& answer) { result = ethtool::read_rings(answer.attrs); });
    return result;
}

bool kernel_nic::set_data_split(ethtool::data_split value)
{
    // The kernel tells listeners of a change, and only of a change, before it acknowledges the request.
    netlink::socket listener;
    auto const group = ethtool_.groups.find(uapi::ethtool::monitor_group);
    if (group != ethtool_.groups.end())
        listener.join(group->second);
    ask(ethtool::set_data_split_request(ethtool_.id, index_, value), "set tcp-data-split", {});
    bool changed = false;
    listener.take_notifications([this, &changed](netlink::generic_message const& one) {
        changed = changed || ethtool::is_rings_change(one, index_);
    });
    return changed;
}

void kernel_nic::set_hds_threshold(std::uint32_t value)
{
    ask(ethtool::set_hds_threshold_request(ethtool_.id, index_, value), "set hds-thresh", {});
}

ethtool::feature_state kernel_nic::feature(ethtool::feature which)
{
    ethtool::feature_state result;
    ask(ethtool::features_request(ethtool_.id, index_), "get features",
        [&result, which](netlink::generic_message const& answer) {
            result = ethtool::read_feature(answer.attrs, which);
        });
    return result;
}

void kernel_nic::set_feature(ethtool::feature which, bool on)
{
    char const* const operation = which == ethtool::feature::ntuple_filters ? "set ntuple-filters" : "set rx-gro-hw";
    ask(ethtool::set_feature_request(ethtool_.id, index_, which, on), operation, {});
    // The kernel acknowledges what it only wishes for.
    if (feature(which).active != on)
        fail(EOPNOTSUPP, operation, name(), advice_on(operation, EOPNOTSUPP));
}

ethtool::channels kernel_nic::channels()
{
    ethtool::channels result;
    ask(ethtool::channels_request(ethtool_.id, index_), "get channels",
        [&result](netlink::generic_message const& answer) { result = ethtool::read_channels(answer.attrs); });
    return result;
}

void kernel_nic::set_channels(ethtool::channels const& value)
{
    ask(ethtool::set_channels_request(ethtool_.id, index_, value), "set channels", {});
}

std::vector<ethtool::rss_context> kernel_nic::rss_contexts()
{
    std::vector<ethtool::rss_context> result;
    ask(
        ethtool::rss_contexts_request(ethtool_.id, index_), "list RSS contexts",
        [&result](netlink::generic_message const& answer) {
            if (auto context = ethtool::read_rss_context(answer.attrs))
                result.push_back(*std::move(context));
        },
        [&result] { result.clear(); });
    return result;
}

std::vector<netdev::rx_queue> kernel_nic::rx_queues()
{
    std::vector<netdev::rx_queue> result;
    ask(
        netdev::queues_request(netdev_.id, index_), "list queues",
        [&result](netlink::generic_message const& answer) {
            if (auto const queue = netdev::read_rx_queue(answer.attrs))
                result.push_back(*queue);
        },
        [&result] { result.clear(); });
    return result;
}

std::vector<netdev::page_pool> kernel_nic::page_pools()
{
    std::vector<netdev::page_pool> result;
    ask(
        netdev::page_pools_request(netdev_.id), "list page pools",
        [&result](netlink::generic_message const& answer) { result.push_back(netdev::read_page_pool(answer.attrs)); },
        [&result] { result.clear(); });
    return result;
}

std::vector<netdev::alloc_failures> kernel_nic::alloc_failures()
{
    std::vector<netdev::alloc_failures> result;
    auto request = netdev::queue_stats_request(netdev_.id, index_);
    auto const said = socket_.exchange(
        request,
        [&result](netlink::generic_message const& answer) {
            if (auto const queue = netdev::read_alloc_failures(answer.attrs))
                result.push_back(*queue);
        },
        [&result] { result.clear(); });
    if (said.error != 0 && said.error != EOPNOTSUPP)
        refuse(said, "get queue statistics", name());
    return result;
}

bool kernel_nic::knows_autorelease()
{
    return netdev::knows_autorelease(bind_rx_attributes());
}

std::unique_ptr<rx_binding> kernel_nic::bind_rx(std::span<unsigned const> queues, int dmabuf_fd,
                                                std::uint32_t rx_page_size, std::optional<bool> autorelease)
{
    if (rx_page_size != 0 && !bind_rx_attributes().contains(uapi::netdev::dmabuf_rx_page_size))
        fail(EOPNOTSUPP, "bind-rx", name(), advice_on("bind-rx", EOPNOTSUPP, "rx-page-size"));
    return bind_with(netlink::socket{}, netdev_.id, name(), {index_, queues, dmabuf_fd, rx_page_size, autorelease});
}

std::unique_ptr<rx_binding> bind_rx(std::string_view interface, netdev::bind_rx const& what)
{
    netlink::socket via;
    auto const family = resolve(via, uapi::netdev::family_name).id;
    return bind_with(std::move(via), family, interface, what);
}

netlink::attribute_rules bind_rx_attributes()
{
    netlink::socket via;
    auto const family = resolve(via, uapi::netdev::family_name).id;
    netlink::policy found;
    auto request = netlink::policy_request(family, uapi::netdev::cmd_bind_rx);
    auto const said = via.exchange(
        request, [&found](netlink::generic_message const& answer) { found.add(answer.attrs); },
        [&found] { found = {}; });
    if (said.error != 0)
        refuse(said, "probe", "bind-rx");
    return found.accepted();
}

}  // namespace gpurx::detail
