// SPDX-License-Identifier: Apache-2.0
#include "fake_device.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/failure.hpp"

namespace gpurx::detail::test {

namespace {

constexpr unsigned pages_per_queue = 64;

[[noreturn]] void refuse(int error, std::string operation, std::string kernel_message = {})
{
    throw system_error{errno_code(error), {std::move(operation), "fake0", std::move(kernel_message), {}}};
}

class fake_binding final : public rx_binding {
  public:
    fake_binding(fake_hardware& hardware, std::uint32_t id) : hw_{hardware}, id_{id} {}
    fake_binding(fake_binding const&) = delete;
    fake_binding& operator=(fake_binding const&) = delete;
    ~fake_binding() override
    {
        std::erase_if(hw_.state.bound, [this](auto const& entry) { return entry.second == id_; });
        hw_.changes.emplace_back("unbind");
    }
    [[nodiscard]] std::optional<std::uint32_t> id() const noexcept override { return id_; }

  private:
    fake_hardware& hw_;
    std::uint32_t id_;
};

class fake_zcrx_binding final : public rx_binding {
  public:
    fake_zcrx_binding(fake_hardware& hardware, std::span<unsigned const> queues)
        : hw_{hardware}, queues_{queues.begin(), queues.end()}
    {
        hw_.state.io_uring.insert(queues.begin(), queues.end());
    }
    fake_zcrx_binding(fake_zcrx_binding const&) = delete;
    fake_zcrx_binding& operator=(fake_zcrx_binding const&) = delete;
    ~fake_zcrx_binding() override
    {
        for (unsigned const queue : queues_)
            hw_.state.io_uring.erase(queue);
        hw_.changes.emplace_back("unbind");
    }
    [[nodiscard]] std::optional<std::uint32_t> id() const noexcept override { return std::nullopt; }

  private:
    fake_hardware& hw_;
    std::vector<unsigned> queues_;
};

}  // namespace

std::size_t fake_hardware::table_size(unsigned queues) const
{
    return table_grows ? 2 * std::bit_ceil(std::max(queues, 4U)) : state.table.size();
}

void fake_hardware::set_table_of_drivers_choice()
{
    state.table = default_table(table_size(rx_queues()), rx_queues());
    state.table_configured = false;
}

void fake_device::check_present() const
{
    if (!hw_.present)
        refuse(ENODEV, "ask");
}

template <class Change>
void fake_device::make(std::string const& name, Change&& change)
{
    check_present();
    hw_.changes.push_back(name);
    if (hw_.before)
        hw_.before(name);
    change();
    if (hw_.after)
        hw_.after(name);
}

ethtool::rings fake_device::rings()
{
    check_present();
    auto split = hw_.state.split;
    if (split == ethtool::data_split::automatic && hw_.state.automatic_means_on)
        split = ethtool::data_split::on;
    return {split, hw_.state.hds_threshold, hw_.rx_frames};
}

bool fake_device::set_data_split(ethtool::data_split value)
{
    bool changed = false;
    make("split", [&] {
        if (!hw_.can_change_split)
            refuse(EOPNOTSUPP, "set tcp-data-split", "setting TCP data split is not supported");
        if (value != ethtool::data_split::on && !hw_.state.bound.empty())
            refuse(EINVAL, "set tcp-data-split",
                   "can't disable tcp-data-split while device has memory provider enabled");
        if (value == ethtool::data_split::on && hw_.split_needs_gro && !hw_.state.hardware_gro)
            refuse(EINVAL, "set tcp-data-split", "TCP-data-split is not supported when GRO HW is disabled");
        changed = hw_.state.split != value;
        hw_.state.split = value;
    });
    return changed;
}

void fake_device::set_hds_threshold(std::uint32_t value)
{
    make("hds", [&] {
        if (value != 0 && !hw_.state.bound.empty())
            refuse(EINVAL, "set hds-thresh");
        hw_.state.hds_threshold = value;
    });
}

void fake_device::set_rx_ring(std::uint32_t frames)
{
    make("rx ring", [&] { hw_.rx_frames = frames; });
}

void fake_device::set_up(bool up)
{
    make(up ? "up" : "down", [&] { hw_.up = up; });
}

ethtool::feature_state fake_device::feature(ethtool::feature which)
{
    check_present();
    if (which == ethtool::feature::hardware_gro)
        return {hw_.state.hardware_gro, hw_.can_change_gro};
    return {hw_.state.ntuple, hw_.can_filter};
}

void fake_device::set_feature(ethtool::feature which, bool on)
{
    bool const gro = which == ethtool::feature::hardware_gro;
    make(gro ? "gro" : "ntuple", [&] {
        if (!feature(which).changeable)
            refuse(EOPNOTSUPP, gro ? "set rx-gro-hw" : "set ntuple-filters");
        // A driver keeps it on while header split needs it.
        if (gro && !on && hw_.split_needs_gro && hw_.state.split == ethtool::data_split::on)
            refuse(EOPNOTSUPP, "set rx-gro-hw");
        (gro ? hw_.state.hardware_gro : hw_.state.ntuple) = on;
        if (!gro && !on)
            hw_.state.rules.clear();
    });
}

void fake_device::set_channels(ethtool::channels const& value)
{
    make("channels", [&] {
        unsigned const count = value.rx_queues();
        auto const beyond = [count](unsigned queue) { return queue >= count; };
        bool used = value.combined > value.combined_max || count == 0;
        for (auto const& [queue, binding] : hw_.state.bound)
            used = used || beyond(queue);
        for (auto const& [id, rule] : hw_.state.rules)
            used = used || (rule.queue && beyond(*rule.queue));
        for (auto const& [id, table] : hw_.state.contexts)
            used = used || std::any_of(table.begin(), table.end(), beyond);
        if (hw_.state.table_configured)
            used = used || std::any_of(hw_.state.table.begin(), hw_.state.table.end(), beyond);
        auto const& old = hw_.state.table;
        auto const size = hw_.table_size(count);
        bool const fits = !hw_.state.table_configured || size >= old.size() ||
                          (size >= hw_.configured_size && same_table(old, {old.begin(), old.begin() + size}));
        if (used || !fits)
            refuse(EINVAL, "set channels", "requested channel counts are too low");
        hw_.state.channels = value;
        if (hw_.state.table_configured)
            hw_.state.table = repeated(hw_.state.table, size);
        if (!hw_.state.table_configured)
            hw_.set_table_of_drivers_choice();
    });
}

std::vector<std::uint32_t> fake_device::rss_table()
{
    check_present();
    return hw_.has_table ? hw_.state.table : std::vector<std::uint32_t>{};
}

void fake_device::set_rss_table(std::span<std::uint32_t const> table)
{
    make("rss", [&] {
        if (!hw_.has_table)
            refuse(EOPNOTSUPP, "set rss-table");
        if (table.empty()) {
            hw_.set_table_of_drivers_choice();
            return;
        }
        if (table.size() != hw_.state.table.size() ||
            std::any_of(table.begin(), table.end(), [this](auto queue) { return queue >= hw_.rx_queues(); }))
            refuse(EINVAL, "set rss-table");
        hw_.state.table.assign(table.begin(), table.end());
        hw_.state.table_configured = true;
        hw_.configured_size = table.size();
    });
}

std::vector<ethtool::rss_context> fake_device::rss_contexts()
{
    std::vector<ethtool::rss_context> all;
    for (auto const& [id, table] : hw_.state.contexts)
        all.push_back({id, table});
    return all;
}

std::uint32_t fake_device::add_rss_context(std::span<std::uint32_t const> table)
{
    std::uint32_t id = 1;
    make("add context", [&] {
        if (!hw_.has_contexts)
            refuse(EOPNOTSUPP, "add RSS context");
        while (hw_.state.contexts.contains(id))
            ++id;
        hw_.state.contexts[id].assign(table.begin(), table.end());
    });
    return id;
}

void fake_device::remove_rss_context(std::uint32_t id)
{
    make("remove context", [&] {
        for (auto const& [place, one] : hw_.state.rules) {
            if (one.rule && one.rule->kind == rule_target::context && one.rule->target == id)
                refuse(EBUSY, "remove RSS context");
        }
        if (hw_.state.contexts.erase(id) == 0)
            refuse(ENOENT, "remove RSS context");
    });
}

std::vector<installed_rule> fake_device::rules()
{
    ++hw_.listings;
    std::vector<installed_rule> all;
    for (auto const& [id, rule] : hw_.state.rules)
        all.push_back(rule);
    return all;
}

std::optional<installed_rule> fake_device::rule(std::uint32_t id)
{
    auto const found = hw_.state.rules.find(id);
    return found != hw_.state.rules.end() ? std::optional{found->second} : std::nullopt;
}

std::uint32_t fake_device::add_rule(flow_rule const& rule)
{
    std::uint32_t id = 0;
    make("add rule", [&] {
        if (!hw_.state.ntuple || (rule.match.remote && !hw_.matches_remote) ||
            (rule.match.local && !hw_.matches_address))
            refuse(EOPNOTSUPP, "add rule");
        if (rule.kind == rule_target::context && !hw_.state.contexts.contains(rule.target))
            refuse(EINVAL, "add rule");
        id = hw_.next_rule--;
        installed_rule made{id, rule, {}};
        if (rule.kind == rule_target::queue)
            made.queue = rule.target;
        hw_.state.rules.emplace(id, made);
    });
    return id;
}

void fake_device::remove_rule(std::uint32_t id)
{
    make("remove rule", [&] {
        if (hw_.state.rules.erase(id) == 0)
            refuse(ENOENT, "remove rule");
    });
}

std::vector<netdev::rx_queue> fake_device::rx_queues()
{
    check_present();
    if (hw_.looked_at_queues)
        hw_.looked_at_queues();
    std::vector<netdev::rx_queue> all;
    for (unsigned id = 0; hw_.up && id < hw_.rx_queues(); ++id) {
        netdev::rx_queue queue;
        queue.id = id;
        if (auto const bound = hw_.state.bound.find(id); bound != hw_.state.bound.end())
            queue.dmabuf = bound->second;
        queue.io_uring = hw_.state.io_uring.contains(id);
        queue.lease = hw_.leased_away.contains(id);
        all.push_back(queue);
    }
    return all;
}

std::vector<netdev::page_pool> fake_device::page_pools()
{
    check_present();
    std::vector<netdev::page_pool> all;
    for (auto const& [queue, binding] : hw_.state.bound)
        all.push_back({.ifindex = 4, .dmabuf = binding, .inflight = pages_per_queue});
    all.push_back({.ifindex = 4, .inflight = 1000});
    return all;
}

std::vector<netdev::rx_losses> fake_device::rx_losses()
{
    check_present();
    std::vector<netdev::rx_losses> all;
    for (unsigned id = 0; id < hw_.rx_queues(); ++id)
        all.push_back({id, hw_.losses + id, hw_.losses, {}});
    return all;
}

// What the kernel asks of a queue before it gets its pages from elsewhere.
void fake_device::check_queue(unsigned queue, std::string const& operation)
{
    if (hw_.state.split != ethtool::data_split::on)
        refuse(EINVAL, operation, "tcp-data-split is disabled");
    if (hw_.state.hds_threshold.value_or(0) != 0)
        refuse(EINVAL, operation, "hds-thresh is not zero");
    if (queue >= hw_.rx_queues())
        refuse(EINVAL, operation);
    if (hw_.leased_away.contains(queue))
        refuse(EBUSY, operation, "rx queue leased to a virtual netdev");
    if (hw_.state.bound.contains(queue) || hw_.state.io_uring.contains(queue))
        refuse(EEXIST, operation, "designated queue already memory provider bound");
}

std::unique_ptr<rx_binding> fake_device::bind_rx(std::span<unsigned const> queues, int /*dmabuf_fd*/,
                                                 std::uint32_t rx_page_size)
{
    std::unique_ptr<rx_binding> made;
    hw_.asked_page_size = rx_page_size;
    make("bind", [&] {
        for (unsigned const queue : queues)
            check_queue(queue, "bind-rx");
        auto const id = hw_.next_binding++;
        for (unsigned const queue : queues)
            hw_.state.bound[queue] = id;
        made = std::make_unique<fake_binding>(hw_, id);
    });
    return made;
}

std::unique_ptr<rx_binding> fake_device::bind_zcrx(std::span<unsigned const> queues, std::span<memory_part const> parts,
                                                   std::uint32_t rx_page_size)
{
    std::unique_ptr<rx_binding> made;
    hw_.asked_page_size = rx_page_size;
    make("bind", [&] {
        if (parts.size() != queues.size())
            fail(EINVAL, "register with io_uring", "a part of the memory for each queue");
        for (unsigned const queue : queues)
            check_queue(queue, "register with io_uring");
        made = std::make_unique<fake_zcrx_binding>(hw_, queues);
    });
    return made;
}

}  // namespace gpurx::detail::test
