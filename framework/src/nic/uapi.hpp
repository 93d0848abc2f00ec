// SPDX-License-Identifier: Apache-2.0
//
// Numbers of the kernel interface that the headers of current distributions lack (Debian 12 has those of Linux 6.1).
// Sources: include/uapi/linux/{netdev,ethtool_netlink_generated,ethtool,genetlink,netlink}.h of Linux 7.3, and the
// specs netdev.yaml and ethtool.yaml in Documentation/netlink/specs. The list has only numbers that are used here.
// These never change, so they are valid for every kernel with the feature.
#pragma once

#include <cstdint>

namespace gpurx::detail::uapi {

namespace nlctrl {  // the genetlink controller
inline constexpr std::uint16_t family_id = 0x10;
inline constexpr std::uint8_t version = 2;
inline constexpr std::uint8_t cmd_getfamily = 3;
inline constexpr std::uint8_t cmd_getpolicy = 10;
inline constexpr std::uint16_t attr_family_id = 1;
inline constexpr std::uint16_t attr_family_name = 2;
inline constexpr std::uint16_t attr_mcast_groups = 7;
inline constexpr std::uint16_t attr_policy = 8;
inline constexpr std::uint16_t attr_op_policy = 9;
inline constexpr std::uint16_t attr_op = 10;
inline constexpr std::uint16_t group_name = 1;
inline constexpr std::uint16_t group_id = 2;
inline constexpr std::uint16_t policy_do = 1;

// Of one attribute's rule.
inline constexpr std::uint16_t rule_type = 1;
inline constexpr std::uint16_t rule_max_unsigned = 5;  // u64
inline constexpr std::uint32_t rule_type_u32 = 4;
}  // namespace nlctrl

namespace error_attr {  // attributes after an NLMSG_ERROR or NLMSG_DONE
inline constexpr std::uint16_t msg = 1;
inline constexpr std::uint16_t offs = 2;
inline constexpr std::uint16_t miss_type = 5;
inline constexpr std::uint16_t miss_nest = 6;
}  // namespace error_attr

namespace netdev {
inline constexpr char const* family_name = "netdev";
inline constexpr std::uint8_t version = 1;
inline constexpr std::uint8_t cmd_page_pool_get = 5;
inline constexpr std::uint8_t cmd_queue_get = 10;
inline constexpr std::uint8_t cmd_qstats_get = 12;
inline constexpr std::uint8_t cmd_bind_rx = 13;
inline constexpr std::uint32_t queue_type_rx = 0;
inline constexpr std::uint32_t scope_queue = 1;

inline constexpr std::uint16_t dmabuf_ifindex = 1;
inline constexpr std::uint16_t dmabuf_queues = 2;  // nested: queue_id, queue_type
inline constexpr std::uint16_t dmabuf_fd = 3;
inline constexpr std::uint16_t dmabuf_id = 4;
inline constexpr std::uint16_t dmabuf_rx_page_size = 5;
inline constexpr std::uint16_t dmabuf_autorelease = 9;  // not in Linux 7.3: kernel-support/linux-7.3 adds it

inline constexpr std::uint16_t queue_id = 1;
inline constexpr std::uint16_t queue_ifindex = 2;
inline constexpr std::uint16_t queue_type = 3;
inline constexpr std::uint16_t queue_dmabuf = 5;
inline constexpr std::uint16_t queue_io_uring = 6;
inline constexpr std::uint16_t queue_xsk = 7;
inline constexpr std::uint16_t queue_lease = 8;

inline constexpr std::uint16_t page_pool_id = 1;
inline constexpr std::uint16_t page_pool_ifindex = 2;
inline constexpr std::uint16_t page_pool_inflight = 4;
inline constexpr std::uint16_t page_pool_detach_time = 6;
inline constexpr std::uint16_t page_pool_dmabuf = 7;
inline constexpr std::uint16_t page_pool_io_uring = 8;

inline constexpr std::uint16_t qstats_ifindex = 1;
inline constexpr std::uint16_t qstats_queue_type = 2;
inline constexpr std::uint16_t qstats_queue_id = 3;
inline constexpr std::uint16_t qstats_scope = 4;
inline constexpr std::uint16_t qstats_rx_alloc_fail = 12;
inline constexpr std::uint16_t qstats_rx_hw_drops = 13;
inline constexpr std::uint16_t qstats_rx_hw_drop_overruns = 14;
}  // namespace netdev

namespace ethtool {
inline constexpr char const* family_name = "ethtool";
inline constexpr char const* monitor_group = "monitor";
inline constexpr std::uint8_t version = 1;

inline constexpr std::uint8_t msg_features_get = 11;
inline constexpr std::uint8_t msg_features_set = 12;
inline constexpr std::uint8_t msg_rings_get = 15;
inline constexpr std::uint8_t msg_rings_set = 16;
inline constexpr std::uint8_t msg_channels_get = 17;
inline constexpr std::uint8_t msg_channels_set = 18;
inline constexpr std::uint8_t msg_rss_get = 38;
inline constexpr std::uint8_t msg_rings_ntf = 17;  // from the kernel; those numbers are a list of their own

inline constexpr std::uint16_t header = 1;  // the same in every message
inline constexpr std::uint16_t header_dev_index = 1;
inline constexpr std::uint16_t header_flags = 3;
inline constexpr std::uint32_t flag_omit_reply = 2;

inline constexpr std::uint16_t rings_rx = 6;
inline constexpr std::uint16_t rings_tcp_data_split = 11;  // u8
inline constexpr std::uint16_t rings_hds_thresh = 17;
inline constexpr std::uint16_t rings_hds_thresh_max = 18;

inline constexpr std::uint16_t channels_rx_max = 2;
inline constexpr std::uint16_t channels_tx_max = 3;
inline constexpr std::uint16_t channels_combined_max = 5;
inline constexpr std::uint16_t channels_rx_count = 6;
inline constexpr std::uint16_t channels_tx_count = 7;
inline constexpr std::uint16_t channels_combined_count = 9;

inline constexpr std::uint16_t features_hw = 2;  // features that can be changed
inline constexpr std::uint16_t features_wanted = 3;
inline constexpr std::uint16_t features_active = 4;
inline constexpr std::uint16_t bitset_bits = 3;
inline constexpr std::uint16_t bits_bit = 1;
inline constexpr std::uint16_t bit_name = 2;
inline constexpr std::uint16_t bit_value = 3;
inline constexpr char const* feature_ntuple = "rx-ntuple-filter";
inline constexpr char const* feature_gro_hw = "rx-gro-hw";

inline constexpr std::uint16_t rss_context = 2;
inline constexpr std::uint16_t rss_indir = 4;

// struct ethtool_rxfh. Headers before 6.8 have reserved bytes in the place of input_xfrm.
struct rxfh {
    std::uint32_t cmd;
    std::uint32_t rss_context;
    std::uint32_t indir_size;
    std::uint32_t key_size;
    std::uint8_t hfunc;
    std::uint8_t input_xfrm;
    std::uint8_t reserved8[2];
    std::uint32_t reserved32;
};
inline constexpr std::uint32_t rxfh_context_alloc = 0xffffffff;
inline constexpr std::uint8_t input_xfrm_no_change = 0xff;
}  // namespace ethtool

inline constexpr int so_netns_cookie = 71;  // SO_NETNS_COOKIE, asm-generic/socket.h

}  // namespace gpurx::detail::uapi
