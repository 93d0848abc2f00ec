// SPDX-License-Identifier: Apache-2.0
#include "netdev.hpp"

#include "uapi.hpp"

namespace gpurx::detail::netdev {

namespace nl = netlink;
namespace nd = uapi::netdev;

nl::request bind_rx_request(std::uint16_t family, bind_rx const& what)
{
    nl::request result{family, nd::cmd_bind_rx, nd::version, NLM_F_ACK};
    result.put(nd::dmabuf_ifindex, std::uint32_t{what.ifindex});
    result.put(nd::dmabuf_fd, static_cast<std::uint32_t>(what.dmabuf_fd));
    for (unsigned const queue : what.queues) {
        result.nest(nd::dmabuf_queues, [queue](nl::request& nest) {
            nest.put(nd::queue_type, nd::queue_type_rx);
            nest.put(nd::queue_id, std::uint32_t{queue});
        });
    }
    if (what.rx_page_size != 0)
        result.put(nd::dmabuf_rx_page_size, what.rx_page_size);
    if (what.autorelease)
        result.put(nd::dmabuf_autorelease, std::uint32_t{*what.autorelease});
    return result;
}

bool knows_autorelease(nl::attribute_rules const& accepted)
{
    auto const found = accepted.find(nd::dmabuf_autorelease);
    return found != accepted.end() && found->second == nl::attribute_rule{uapi::nlctrl::rule_type_u32, 1};
}

std::optional<std::uint32_t> read_binding(nl::attributes const& answer)
{
    return answer.u32(nd::dmabuf_id);
}

std::string bind_rx_attribute(nl::bytes_view request, nl::verdict const& said)
{
    std::vector<std::uint16_t> path;
    if (said.offset)
        path = nl::path_at(request, *said.offset);
    else if (said.missing_type && !said.missing_in)
        path.push_back(static_cast<std::uint16_t>(*said.missing_type));
    if (path.empty())
        return {};
    switch (path.front()) {
        case nd::dmabuf_ifindex:
            return "ifindex";
        case nd::dmabuf_queues:
            return path.size() == 2 && path.back() == nd::queue_id ? "queues.id" : "queues";
        case nd::dmabuf_fd:
            return "fd";
        case nd::dmabuf_rx_page_size:
            return "rx-page-size";
        case nd::dmabuf_autorelease:
            return "autorelease";
        default:
            return {};
    }
}

nl::request queues_request(std::uint16_t family, unsigned ifindex)
{
    nl::request result{family, nd::cmd_queue_get, nd::version, NLM_F_DUMP};
    result.put(nd::queue_ifindex, std::uint32_t{ifindex});
    return result;
}

std::optional<rx_queue> read_rx_queue(nl::attributes const& answer)
{
    auto const id = answer.u32(nd::queue_id);
    if (!id || answer.u32(nd::queue_type) != nd::queue_type_rx)
        return std::nullopt;
    rx_queue result;
    result.id = *id;
    result.dmabuf = answer.u32(nd::queue_dmabuf);
    result.io_uring = answer.find(nd::queue_io_uring).has_value();
    result.xsk = answer.find(nd::queue_xsk).has_value();
    result.lease = answer.find(nd::queue_lease).has_value();
    return result;
}

nl::request page_pools_request(std::uint16_t family)
{
    return {family, nd::cmd_page_pool_get, nd::version, NLM_F_DUMP};
}

page_pool read_page_pool(nl::attributes const& answer)
{
    page_pool result;
    result.ifindex = answer.u32(nd::page_pool_ifindex).value_or(0);
    result.dmabuf = answer.u32(nd::page_pool_dmabuf);
    result.inflight = answer.uint(nd::page_pool_inflight).value_or(0);
    result.detached = answer.find(nd::page_pool_detach_time).has_value();
    return result;
}

nl::request queue_stats_request(std::uint16_t family, unsigned ifindex)
{
    nl::request result{family, nd::cmd_qstats_get, nd::version, NLM_F_DUMP};
    result.put(nd::qstats_ifindex, std::uint32_t{ifindex});
    result.put(nd::qstats_scope, nd::scope_queue);
    return result;
}

std::optional<alloc_failures> read_alloc_failures(nl::attributes const& answer)
{
    auto const queue = answer.u32(nd::qstats_queue_id);
    auto const count = answer.uint(nd::qstats_rx_alloc_fail);
    if (!queue || !count || answer.u32(nd::qstats_queue_type) != nd::queue_type_rx)
        return std::nullopt;
    return alloc_failures{*queue, *count};
}

}  // namespace gpurx::detail::netdev
