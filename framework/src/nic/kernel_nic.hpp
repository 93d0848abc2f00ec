// SPDX-License-Identifier: Apache-2.0
//
// A NIC by the kernel's interfaces: netlink (netdev and ethtool families), and ethtool ioctls for the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/syscalls.hpp"
#include "flow_rule.hpp"
#include "netlink.hpp"
#include "nic_device.hpp"

struct ifreq;

namespace gpurx::detail {

// The calls of nic_device with the same names.
class ethtool_ioctl {
  public:
    // An interface of this thread's network namespace, by its number, because it may be renamed.
    explicit ethtool_ioctl(unsigned index);

    // Empty if the interface is gone.
    [[nodiscard]] std::optional<std::string> name() const;
    [[nodiscard]] std::string driver() const;
    [[nodiscard]] std::uint32_t mtu() const;

    [[nodiscard]] bool is_up() const;
    void set_up(bool up) const;

    [[nodiscard]] std::vector<std::uint32_t> rss_table() const;
    void set_rss_table(std::span<std::uint32_t const> table) const;
    [[nodiscard]] std::uint32_t add_rss_context(std::span<std::uint32_t const> table) const;
    void remove_rss_context(std::uint32_t id) const;

    [[nodiscard]] std::vector<installed_rule> rules() const;
    [[nodiscard]] std::optional<installed_rule> rule(std::uint32_t id) const;
    // Lists all rules at most once in the life of this object, and once more if the table seems full.
    [[nodiscard]] std::uint32_t add_rule(flow_rule const& rule);
    void remove_rule(std::uint32_t id);

  private:
    // The places of all rules, and the size of the table (0: the driver does not report it).
    struct rule_list {
        std::vector<std::uint32_t> used;
        std::uint32_t size = 0;
        bool driver_chooses = true;
    };
    [[nodiscard]] rule_list list() const;
    void look_for_places();
    // Empty if all are taken.
    [[nodiscard]] std::optional<std::uint32_t> free_place(bool of_connection);
    // Fills in the name and calls the kernel. Throws system_error with `operation`.
    void ask(unsigned long what, ifreq& request, char const* operation) const;
    // 0, or errno.
    [[nodiscard]] int call(void* command) const;
    [[noreturn]] void refuse(int error, std::string operation, std::string const& object = {}) const;

    unsigned index_;
    unique_fd socket_;
    std::optional<rule_places> places_;  // as far as known; other programs may take and return some
    bool driver_chooses_ = false;
};

class kernel_nic final : public nic_device {
  public:
    // An interface of this thread's network namespace. Throws system_error: ENODEV; a kernel without the families.
    explicit kernel_nic(std::string_view interface);

    [[nodiscard]] std::string name() const override;
    [[nodiscard]] unsigned index() const noexcept override { return index_; }
    [[nodiscard]] std::string driver() override { return ioctl_.driver(); }
    [[nodiscard]] bool present() const override { return ioctl_.name().has_value(); }

    [[nodiscard]] ethtool::rings rings() override;
    [[nodiscard]] std::uint32_t mtu() override { return ioctl_.mtu(); }
    bool set_data_split(ethtool::data_split value) override;
    void set_hds_threshold(std::uint32_t value) override;
    void set_rx_ring(std::uint32_t frames) override;
    [[nodiscard]] bool is_up() override { return ioctl_.is_up(); }
    void set_up(bool up) override { ioctl_.set_up(up); }
    [[nodiscard]] ethtool::feature_state feature(ethtool::feature which) override;
    void set_feature(ethtool::feature which, bool on) override;
    [[nodiscard]] ethtool::channels channels() override;
    void set_channels(ethtool::channels const& value) override;

    [[nodiscard]] std::vector<std::uint32_t> rss_table() override { return ioctl_.rss_table(); }
    void set_rss_table(std::span<std::uint32_t const> table) override { ioctl_.set_rss_table(table); }
    [[nodiscard]] std::vector<ethtool::rss_context> rss_contexts() override;
    [[nodiscard]] std::uint32_t add_rss_context(std::span<std::uint32_t const> table) override
    {
        return ioctl_.add_rss_context(table);
    }
    void remove_rss_context(std::uint32_t id) override { ioctl_.remove_rss_context(id); }
    [[nodiscard]] std::vector<installed_rule> rules() override { return ioctl_.rules(); }
    [[nodiscard]] std::optional<installed_rule> rule(std::uint32_t id) override { return ioctl_.rule(id); }
    [[nodiscard]] std::uint32_t add_rule(flow_rule const& rule) override { return ioctl_.add_rule(rule); }
    void remove_rule(std::uint32_t id) override { ioctl_.remove_rule(id); }

    [[nodiscard]] std::vector<netdev::rx_queue> rx_queues() override;
    [[nodiscard]] std::vector<netdev::page_pool> page_pools() override;
    [[nodiscard]] std::vector<netdev::rx_losses> rx_losses() override;
    [[nodiscard]] bool has_array_tokens() override;
    [[nodiscard]] std::unique_ptr<rx_binding> bind_rx(std::span<unsigned const> queues, int dmabuf_fd,
                                                      std::uint32_t rx_page_size) override;
    [[nodiscard]] std::unique_ptr<rx_binding> bind_zcrx(std::span<unsigned const> queues,
                                                        std::span<memory_part const> parts,
                                                        std::uint32_t rx_page_size) override;

  private:
    // Sends a request and throws the kernel's error. `operation` names the request in the error.
    void ask(netlink::request what, std::string_view operation, netlink::socket::on_answer const& answer,
             std::function<void()> const& restart = {});

    unsigned index_;
    netlink::socket socket_;
    netlink::family ethtool_;
    netlink::family netdev_;
    ethtool_ioctl ioctl_;
};

// Makes only the bind-rx request, on a new netlink socket; the binding ends with that socket. Throws the kernel's error
// as system_error, with its text. It prepares and checks nothing before.
[[nodiscard]] std::unique_ptr<rx_binding> bind_rx(std::string_view interface, netdev::bind_rx const& what);

// Returns the attributes that bind-rx accepts on this kernel, by number (uapi.hpp), to detect optional ones.
[[nodiscard]] netlink::attribute_rules bind_rx_attributes();

}  // namespace gpurx::detail
