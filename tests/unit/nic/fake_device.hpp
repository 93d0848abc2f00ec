// SPDX-License-Identifier: Apache-2.0
//
// A NIC in memory that keeps the kernel's rules: what it refuses, the kernel refuses too, with the same errno.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lease/queue_plan.hpp"
#include "nic/nic_device.hpp"

namespace gpurx::detail::test {

// What a user could read from the NIC: two equal states are the same NIC to everybody.
struct nic_state {
    ethtool::data_split split = ethtool::data_split::automatic;  // as configured
    bool automatic_means_on = false;
    std::optional<std::uint32_t> hds_threshold = 256;
    bool ntuple = false;
    bool hardware_gro = false;
    ethtool::channels channels{0, 0, 4, 0, 0, 8};
    bool table_configured = false;  // by somebody; else it follows the channels
    indirection_table table = default_table(8, 4);
    std::map<std::uint32_t, indirection_table> contexts;
    std::map<std::uint32_t, installed_rule> rules;
    std::map<unsigned, std::uint32_t> bound;  // binding of a queue
    std::set<unsigned> io_uring;              // queues that are registered with it

    friend bool operator==(nic_state const&, nic_state const&) = default;
};

// The device itself, which outlives those who look at it.
class fake_hardware {
  public:
    nic_state state;

    std::string driver = "fake";
    std::set<unsigned> leased_away;  // queues, to virtual devices

    // What it cannot do.
    bool has_table = true;
    bool has_contexts = true;
    bool can_change_split = true;
    bool can_filter = true;
    bool split_needs_gro = false;
    bool can_change_gro = true;
    bool matches_remote = true;
    bool matches_address = true;
    bool up = true;
    bool present = true;
    bool table_grows = false;       // two entries for each queue that there may be up to the next power of two
    bool has_array_tokens = false;  // the kernel, that is

    // Called before each change with its name; may throw. Changes are counted from 1.
    std::function<void(std::string const& name)> before;
    // Called after each change.
    std::function<void(std::string const& name)> after;
    // Called before the queues are shown to anybody.
    std::function<void()> looked_at_queues;
    std::vector<std::string> changes;  // names, in order

    [[nodiscard]] unsigned rx_queues() const { return state.channels.rx_queues(); }
    // The kernel unbinds what a process had bound when the process ends.
    void unbind_all() { state.bound.clear(), state.io_uring.clear(); }
    void set_table_of_drivers_choice();
    // How many entries the table has with so many queues.
    [[nodiscard]] std::size_t table_size(unsigned queues) const;
    std::size_t configured_size = 0;  // of the table when it was configured; it never gets smaller than that

    std::optional<std::uint32_t> rx_frames = 1024;
    std::uint32_t mtu = 1500;
    std::uint64_t losses = 100;  // of each kind and queue, so far

    unsigned listings = 0;  // of all rules
    std::uint32_t next_binding = 1;
    std::uint32_t asked_page_size = 0;  // by the last bind
    std::uint32_t next_rule = 1023;
};

class fake_device final : public nic_device {
  public:
    explicit fake_device(fake_hardware& hardware) : hw_{hardware} {}

    [[nodiscard]] std::string name() const override { return "fake0"; }
    [[nodiscard]] unsigned index() const noexcept override { return 4; }
    [[nodiscard]] std::string driver() override { return hw_.driver; }
    [[nodiscard]] bool present() const override { return hw_.present; }

    [[nodiscard]] ethtool::rings rings() override;
    [[nodiscard]] std::uint32_t mtu() override { return hw_.mtu; }
    bool set_data_split(ethtool::data_split value) override;
    void set_hds_threshold(std::uint32_t value) override;
    void set_rx_ring(std::uint32_t frames) override;
    [[nodiscard]] bool is_up() override { return hw_.up; }
    void set_up(bool up) override;
    [[nodiscard]] ethtool::feature_state feature(ethtool::feature which) override;
    void set_feature(ethtool::feature which, bool on) override;
    [[nodiscard]] ethtool::channels channels() override { return hw_.state.channels; }
    void set_channels(ethtool::channels const& value) override;
    [[nodiscard]] std::vector<std::uint32_t> rss_table() override;
    void set_rss_table(std::span<std::uint32_t const> table) override;
    [[nodiscard]] std::vector<ethtool::rss_context> rss_contexts() override;
    [[nodiscard]] std::uint32_t add_rss_context(std::span<std::uint32_t const> table) override;
    void remove_rss_context(std::uint32_t id) override;
    [[nodiscard]] std::vector<installed_rule> rules() override;
    [[nodiscard]] std::optional<installed_rule> rule(std::uint32_t id) override;
    [[nodiscard]] std::uint32_t add_rule(flow_rule const& rule) override;
    void remove_rule(std::uint32_t id) override;
    [[nodiscard]] std::vector<netdev::rx_queue> rx_queues() override;
    [[nodiscard]] std::vector<netdev::page_pool> page_pools() override;
    [[nodiscard]] std::vector<netdev::rx_losses> rx_losses() override;
    [[nodiscard]] bool has_array_tokens() override { return hw_.has_array_tokens; }
    [[nodiscard]] std::unique_ptr<rx_binding> bind_rx(std::span<unsigned const> queues, int dmabuf_fd,
                                                      std::uint32_t rx_page_size) override;
    [[nodiscard]] std::unique_ptr<rx_binding> bind_zcrx(std::span<unsigned const> queues,
                                                        std::span<memory_part const> parts,
                                                        std::uint32_t rx_page_size) override;

  private:
    // Makes a change, with what is to happen before and after it.
    template <class Change>
    void make(std::string const& name, Change&& change);
    void check_queue(unsigned queue, std::string const& operation);
    void check_present() const;

    fake_hardware& hw_;
};

}  // namespace gpurx::detail::test
