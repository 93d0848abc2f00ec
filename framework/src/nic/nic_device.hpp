// SPDX-License-Identifier: Apache-2.0
//
// A lease's interface to one NIC. It separates queue_lease, which makes no system calls, from kernel_nic. Tests have
// their own NIC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory_part.hpp"
#include "families.hpp"
#include "flow_rule.hpp"

namespace gpurx::detail {

// Memory bound to RX queues. Its destruction unbinds it.
class rx_binding {
  public:
    rx_binding() = default;
    rx_binding(rx_binding const&) = delete;
    rx_binding& operator=(rx_binding const&) = delete;
    virtual ~rx_binding() = default;

    // The kernel's id (dmabuf_cmsg.dmabuf_id); nothing: of queues of io_uring.
    [[nodiscard]] virtual std::optional<std::uint32_t> id() const noexcept = 0;
    // The queues of io_uring; none: bound by bind-rx.
    [[nodiscard]] virtual zcrx_queues zcrx() const noexcept { return {}; }
};

// Every non-const member throws system_error, with the kernel's text if there is one. Not thread-safe.
class nic_device {
  public:
    nic_device() = default;
    nic_device(nic_device const&) = delete;
    nic_device& operator=(nic_device const&) = delete;
    virtual ~nic_device() = default;

    // For people; a device may be renamed.
    [[nodiscard]] virtual std::string name() const = 0;
    [[nodiscard]] virtual unsigned index() const noexcept = 0;
    // Name of the driver, as from `ethtool -i`; empty if not reported.
    [[nodiscard]] virtual std::string driver() = 0;
    // Returns false if it was removed, or moved to another network namespace.
    [[nodiscard]] virtual bool present() const = 0;

    [[nodiscard]] virtual ethtool::rings rings() = 0;
    // Bytes of the largest packet, its IP header included.
    [[nodiscard]] virtual std::uint32_t mtu() = 0;
    // Returns true if the configuration has changed, false if it already had this value. With the configuration
    // "automatic" the effective value (see rings()) may also be "on".
    virtual bool set_data_split(ethtool::data_split value) = 0;
    virtual void set_hds_threshold(std::uint32_t value) = 0;
    // Of each RX queue. Restarts the queues.
    virtual void set_rx_ring(std::uint32_t frames) = 0;

    [[nodiscard]] virtual bool is_up() = 0;
    virtual void set_up(bool up) = 0;

    [[nodiscard]] virtual ethtool::feature_state feature(ethtool::feature which) = 0;
    virtual void set_feature(ethtool::feature which, bool on) = 0;

    [[nodiscard]] virtual ethtool::channels channels() = 0;
    virtual void set_channels(ethtool::channels const& value) = 0;

    // The RSS table; empty if the NIC has none.
    [[nodiscard]] virtual std::vector<std::uint32_t> rss_table() = 0;
    // Empty: restores the driver's default, which follows the number of channels.
    virtual void set_rss_table(std::span<std::uint32_t const> table) = 0;
    [[nodiscard]] virtual std::vector<ethtool::rss_context> rss_contexts() = 0;
    [[nodiscard]] virtual std::uint32_t add_rss_context(std::span<std::uint32_t const> table) = 0;
    virtual void remove_rss_context(std::uint32_t id) = 0;

    // All rules on the NIC, including those of other programs.
    [[nodiscard]] virtual std::vector<installed_rule> rules() = 0;
    // Empty if there is no rule with this id.
    [[nodiscard]] virtual std::optional<installed_rule> rule(std::uint32_t id) = 0;
    // Returns the rule's id.
    [[nodiscard]] virtual std::uint32_t add_rule(flow_rule const& rule) = 0;
    virtual void remove_rule(std::uint32_t id) = 0;

    // Empty while the interface is down.
    [[nodiscard]] virtual std::vector<netdev::rx_queue> rx_queues() = 0;
    [[nodiscard]] virtual std::vector<netdev::page_pool> page_pools() = 0;
    // Counters of each RX queue; empty if the driver has none.
    [[nodiscard]] virtual std::vector<netdev::rx_losses> rx_losses() = 0;

    // Whether the kernel has array tokens for sockets, of memory that bind_rx() binds.
    [[nodiscard]] virtual bool has_array_tokens() = 0;
    // rx_page_size 0: the default.
    [[nodiscard]] virtual std::unique_ptr<rx_binding> bind_rx(std::span<unsigned const> queues, int dmabuf_fd,
                                                              std::uint32_t rx_page_size) = 0;
    // The same by io_uring: a part of the memory for each queue.
    [[nodiscard]] virtual std::unique_ptr<rx_binding> bind_zcrx(std::span<unsigned const> queues,
                                                                std::span<memory_part const> parts,
                                                                std::uint32_t rx_page_size) = 0;
};

}  // namespace gpurx::detail
