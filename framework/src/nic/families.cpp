// SPDX-License-Identifier: Apache-2.0
#include "families.hpp"

#include <algorithm>
#include <span>

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

bool has_array_tokens(nl::attribute_rules const& accepted)
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

std::string user_of(rx_queue const& queue)
{
    if (queue.dmabuf)
        return "memory of binding " + std::to_string(*queue.dmabuf);
    if (queue.io_uring)
        return "io_uring zero copy";
    return queue.xsk ? "an AF_XDP socket" : "a virtual device";
}

nl::request page_pools_request(std::uint16_t family)
{
    return {family, nd::cmd_page_pool_get, nd::version, NLM_F_DUMP};
}

page_pool read_page_pool(nl::attributes const& answer)
{
    page_pool result;
    result.id = answer.uint(nd::page_pool_id).value_or(0);
    result.ifindex = answer.u32(nd::page_pool_ifindex).value_or(0);
    result.dmabuf = answer.u32(nd::page_pool_dmabuf);
    result.io_uring = answer.find(nd::page_pool_io_uring).has_value();
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

std::optional<rx_losses> read_rx_losses(nl::attributes const& answer)
{
    auto const queue = answer.u32(nd::qstats_queue_id);
    if (!queue || answer.u32(nd::qstats_queue_type) != nd::queue_type_rx)
        return std::nullopt;
    return rx_losses{*queue, answer.uint(nd::qstats_rx_alloc_fail), answer.uint(nd::qstats_rx_hw_drop_overruns),
                     answer.uint(nd::qstats_rx_hw_drops)};
}

}  // namespace gpurx::detail::netdev

namespace gpurx::detail::ethtool {

namespace nl = netlink;
namespace et = uapi::ethtool;

namespace {

nl::request make(std::uint16_t family, std::uint8_t command, std::uint16_t flags, unsigned ifindex,
                 std::uint32_t header_flags = 0)
{
    nl::request result{family, command, et::version, flags};
    result.nest(et::header, [&](nl::request& header) {
        header.put(et::header_dev_index, std::uint32_t{ifindex});
        if (header_flags != 0)
            header.put(et::header_flags, header_flags);
    });
    return result;
}

std::string_view name_of(feature which) noexcept
{
    return which == feature::ntuple_filters ? et::feature_ntuple : et::feature_gro_hw;
}

}  // namespace

nl::request rings_request(std::uint16_t family, unsigned ifindex)
{
    return make(family, et::msg_rings_get, NLM_F_ACK, ifindex);
}

rings read_rings(nl::attributes const& answer)
{
    rings result;
    auto const split = answer.u8(et::rings_tcp_data_split);
    if (split == static_cast<std::uint8_t>(data_split::off))
        result.split = data_split::off;
    else if (split == static_cast<std::uint8_t>(data_split::on))
        result.split = data_split::on;
    result.hds_threshold = answer.u32(et::rings_hds_thresh);
    result.rx_frames = answer.u32(et::rings_rx);
    return result;
}

nl::request set_data_split_request(std::uint16_t family, unsigned ifindex, data_split value)
{
    auto result = make(family, et::msg_rings_set, NLM_F_ACK, ifindex);
    result.put(et::rings_tcp_data_split, static_cast<std::uint8_t>(value));
    return result;
}

nl::request set_hds_threshold_request(std::uint16_t family, unsigned ifindex, std::uint32_t value)
{
    auto result = make(family, et::msg_rings_set, NLM_F_ACK, ifindex);
    result.put(et::rings_hds_thresh, value);
    return result;
}

nl::request set_rx_ring_request(std::uint16_t family, unsigned ifindex, std::uint32_t frames)
{
    auto result = make(family, et::msg_rings_set, NLM_F_ACK, ifindex);
    result.put(et::rings_rx, frames);
    return result;
}

bool is_rings_change(nl::generic_message const& notification, unsigned ifindex)
{
    return notification.command == et::msg_rings_ntf &&
           notification.attrs.nested(et::header).u32(et::header_dev_index) == ifindex;
}

nl::request channels_request(std::uint16_t family, unsigned ifindex)
{
    return make(family, et::msg_channels_get, NLM_F_ACK, ifindex);
}

channels read_channels(nl::attributes const& answer)
{
    auto const count = [&answer](std::uint16_t type) { return answer.u32(type).value_or(0); };
    return {.rx = count(et::channels_rx_count),
            .tx = count(et::channels_tx_count),
            .combined = count(et::channels_combined_count),
            .rx_max = count(et::channels_rx_max),
            .tx_max = count(et::channels_tx_max),
            .combined_max = count(et::channels_combined_max)};
}

nl::request set_channels_request(std::uint16_t family, unsigned ifindex, channels const& value)
{
    auto result = make(family, et::msg_channels_set, NLM_F_ACK, ifindex);
    if (value.rx_max != 0)
        result.put(et::channels_rx_count, value.rx);
    if (value.tx_max != 0)
        result.put(et::channels_tx_count, value.tx);
    if (value.combined_max != 0)
        result.put(et::channels_combined_count, value.combined);
    return result;
}

nl::request features_request(std::uint16_t family, unsigned ifindex)
{
    return make(family, et::msg_features_get, NLM_F_ACK, ifindex);
}

feature_state read_feature(nl::attributes const& answer, feature which)
{
    // Bitsets by names: they list the bits that are set.
    auto const lists = [&answer, which](std::uint16_t set) {
        bool found = false;
        answer.nested(set).nested(et::bitset_bits).for_each([&found, which](nl::attribute const& bit) {
            auto const name = nl::attributes{bit.value()}.find(et::bit_name);
            found = found || (name && name->text() == name_of(which));
        });
        return found;
    };
    return {lists(et::features_active), lists(et::features_hw)};
}

nl::request set_feature_request(std::uint16_t family, unsigned ifindex, feature which, bool on)
{
    auto result = make(family, et::msg_features_set, NLM_F_ACK, ifindex, et::flag_omit_reply);
    result.nest(et::features_wanted, [which, on](nl::request& bitset) {
        bitset.nest(et::bitset_bits, [which, on](nl::request& bits) {
            bits.nest(et::bits_bit, [which, on](nl::request& bit) {
                bit.put(et::bit_name, name_of(which));
                if (on)
                    bit.put_flag(et::bit_value);
            });
        });
    });
    return result;
}

nl::request rss_contexts_request(std::uint16_t family, unsigned ifindex)
{
    return make(family, et::msg_rss_get, NLM_F_DUMP, ifindex);
}

std::optional<rss_context> read_rss_context(nl::attributes const& answer)
{
    auto const id = answer.u32(et::rss_context);
    if (!id || *id == 0)
        return std::nullopt;
    rss_context result{*id, {}};
    if (auto const table = answer.find(et::rss_indir)) {
        auto const bytes = table->value();
        result.table.resize(bytes.size() / sizeof(std::uint32_t));
        std::copy_n(bytes.begin(), result.table.size() * sizeof(std::uint32_t),
                    std::as_writable_bytes(std::span{result.table}).begin());
    }
    return result;
}

}  // namespace gpurx::detail::ethtool
