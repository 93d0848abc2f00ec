// SPDX-License-Identifier: Apache-2.0
#include "kernel_nic.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <utility>

#include "base/failure.hpp"
#include "base/thread.hpp"
#include "base/zcrx_queue.hpp"
#include "process.hpp"
#include "uapi.hpp"

namespace gpurx::detail {

namespace {

constexpr std::uint32_t largest_table = 1 << 16;  // entries of an RSS table, or rules
constexpr int driver_enotsupp = 524;              // some drivers let this number of the kernel's own slip out

// A command and the 32-bit numbers after it, as one block.
template <class Header>
class block {
  public:
    explicit block(std::size_t numbers) : storage_(sizeof(Header) + numbers * sizeof(std::uint32_t)) {}

    [[nodiscard]] Header& header() noexcept { return *reinterpret_cast<Header*>(storage_.data()); }
    [[nodiscard]] void* data() noexcept { return storage_.data(); }
    // The numbers begin at byte `offset`.
    void put(std::size_t offset, std::span<std::uint32_t const> numbers) noexcept
    {
        std::copy(numbers.begin(), numbers.end(), at(offset));
    }
    [[nodiscard]] std::vector<std::uint32_t> get(std::size_t offset, std::size_t count) noexcept
    {
        return {at(offset), at(offset) + count};
    }

  private:
    [[nodiscard]] std::uint32_t* at(std::size_t offset) noexcept
    {
        return reinterpret_cast<std::uint32_t*>(storage_.data() + offset);
    }

    std::vector<std::byte> storage_;
};

}  // namespace

ethtool_ioctl::ethtool_ioctl(unsigned index) : index_{index}, socket_{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)}
{
    if (!socket_)
        fail(errno, "open", "socket for ethtool");
}

std::optional<std::string> ethtool_ioctl::name() const
{
    ifreq request{};
    request.ifr_ifindex = static_cast<int>(index_);
    if (::ioctl(socket_.get(), SIOCGIFNAME, &request) != 0)
        return std::nullopt;
    return request.ifr_name;
}

std::string ethtool_ioctl::driver() const
{
    ethtool_drvinfo answer{};
    answer.cmd = ETHTOOL_GDRVINFO;
    return call(&answer) == 0 ? answer.driver : std::string{};
}

std::uint32_t ethtool_ioctl::mtu() const
{
    ifreq request{};
    ask(SIOCGIFMTU, request, "get mtu");
    return static_cast<std::uint32_t>(request.ifr_mtu);
}

void ethtool_ioctl::refuse(int error, std::string operation, std::string const& object) const
{
    auto advice = advice_on(operation, error);
    auto const interface = name().value_or("interface number " + std::to_string(index_));
    fail(error, std::move(operation), object.empty() ? interface : interface + ' ' + object, std::move(advice));
}

int ethtool_ioctl::call(void* command) const
{
    auto const interface = name();
    if (!interface)
        return ENODEV;
    ifreq request{};
    interface->copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = static_cast<char*>(command);
    if (::ioctl(socket_.get(), SIOCETHTOOL, &request) == 0)
        return 0;
    return errno == driver_enotsupp ? EOPNOTSUPP : errno;
}

void ethtool_ioctl::ask(unsigned long what, ifreq& request, char const* operation) const
{
    auto const interface = name();
    if (interface)
        interface->copy(request.ifr_name, IFNAMSIZ - 1);
    if (!interface || ::ioctl(socket_.get(), what, &request) != 0)
        refuse(interface ? errno : ENODEV, operation);
}

bool ethtool_ioctl::is_up() const
{
    ifreq request{};
    ask(SIOCGIFFLAGS, request, "get flags");
    return (request.ifr_flags & IFF_UP) != 0;
}

void ethtool_ioctl::set_up(bool up) const
{
    ifreq request{};
    ask(SIOCGIFFLAGS, request, "get flags");
    auto const others = static_cast<short>(request.ifr_flags & ~IFF_UP);
    request.ifr_flags = static_cast<short>(up ? others | IFF_UP : others);
    ask(SIOCSIFFLAGS, request, up ? "set up" : "set down");
}

std::vector<std::uint32_t> ethtool_ioctl::rss_table() const
{
    ethtool_rxfh_indir size{};
    size.cmd = ETHTOOL_GRXFHINDIR;
    int error = call(&size);
    if (error == EOPNOTSUPP)
        return {};
    if (error == 0 && size.size > largest_table)
        error = E2BIG;
    if (error != 0)
        refuse(error, "get rss-table");

    block<ethtool_rxfh_indir> table{size.size};
    table.header().cmd = ETHTOOL_GRXFHINDIR;
    table.header().size = size.size;
    if (error = call(table.data()); error != 0)
        refuse(error, "get rss-table");
    return table.get(offsetof(ethtool_rxfh_indir, ring_index), size.size);
}

void ethtool_ioctl::set_rss_table(std::span<std::uint32_t const> table) const
{
    block<ethtool_rxfh_indir> request{table.size()};
    request.header().cmd = ETHTOOL_SRXFHINDIR;
    request.header().size = static_cast<std::uint32_t>(table.size());
    request.put(offsetof(ethtool_rxfh_indir, ring_index), table);
    if (int const error = call(request.data()); error != 0)
        refuse(error, "set rss-table");
}

std::uint32_t ethtool_ioctl::add_rss_context(std::span<std::uint32_t const> table) const
{
    block<uapi::ethtool::rxfh> request{table.size()};
    request.header().cmd = ETHTOOL_SRSSH;
    request.header().rss_context = uapi::ethtool::rxfh_context_alloc;
    request.header().indir_size = static_cast<std::uint32_t>(table.size());
    request.header().input_xfrm = uapi::ethtool::input_xfrm_no_change;
    request.put(sizeof(uapi::ethtool::rxfh), table);
    if (int const error = call(request.data()); error != 0)
        refuse(error, "add RSS context");
    return request.header().rss_context;
}

void ethtool_ioctl::remove_rss_context(std::uint32_t id) const
{
    uapi::ethtool::rxfh request{};
    request.cmd = ETHTOOL_SRSSH;
    request.rss_context = id;
    request.input_xfrm = uapi::ethtool::input_xfrm_no_change;
    if (int const error = call(&request); error != 0)
        refuse(error, "remove RSS context", "context " + std::to_string(id));
}

ethtool_ioctl::rule_list ethtool_ioctl::list() const
{
    constexpr int attempts = 5;  // rules may come between the question how many and the question which
    for (int attempt = 1;; ++attempt) {
        ethtool_rxnfc count{};
        count.cmd = ETHTOOL_GRXCLSRLCNT;
        int error = call(&count);
        if (error == EOPNOTSUPP)
            return {};
        if (error == 0 && count.rule_cnt > largest_table)
            error = E2BIG;
        if (error != 0)
            refuse(error, "list rules");

        block<ethtool_rxnfc> all{count.rule_cnt};
        all.header().cmd = ETHTOOL_GRXCLSRLALL;
        all.header().rule_cnt = count.rule_cnt;
        error = call(all.data());
        if (error == EMSGSIZE && attempt < attempts)
            continue;
        if (error != 0)
            refuse(error, "list rules");
        auto const size = static_cast<std::uint32_t>((all.header().data != 0 ? all.header().data : count.data) &
                                                     ~std::uint64_t{RX_CLS_LOC_SPECIAL});
        return {all.get(offsetof(ethtool_rxnfc, rule_locs), std::min(all.header().rule_cnt, count.rule_cnt)),
                std::min(size, largest_table), (count.data & RX_CLS_LOC_SPECIAL) != 0};
    }
}

std::vector<installed_rule> ethtool_ioctl::rules() const
{
    std::vector<installed_rule> result;
    for (std::uint32_t const place : list().used) {
        if (auto found = rule(place))  // else removed meanwhile
            result.push_back(*std::move(found));
    }
    return result;
}

std::optional<installed_rule> ethtool_ioctl::rule(std::uint32_t id) const
{
    ethtool_rxnfc answer{};
    answer.cmd = ETHTOOL_GRXCLSRULE;
    answer.fs.location = id;
    int const error = call(&answer);
    if (error == ENOENT || error == EINVAL)
        return std::nullopt;
    if (error != 0)
        refuse(error, "get rule", "rule " + std::to_string(id));
    answer.fs.location = id;  // not every driver repeats it
    return decode_rule(answer);
}

void ethtool_ioctl::look_for_places()
{
    auto const all = list();
    driver_chooses_ = all.driver_chooses || all.size == 0;
    places_.emplace(all.used, all.size);
}

std::optional<std::uint32_t> ethtool_ioctl::free_place(bool of_connection)
{
    for (bool looked = false;;) {
        auto const place = places_->last_free(of_connection);
        if (!place && looked)
            return std::nullopt;
        if (!place) {
            look_for_places();
            looked = true;
        } else if (rule(*place)) {
            places_->take(*place);
        } else {
            return place;
        }
    }
}

std::uint32_t ethtool_ioctl::add_rule(flow_rule const& rule)
{
    if (!places_)
        look_for_places();
    auto request = encode_rule(rule);
    request.fs.location = RX_CLS_LOC_ANY;
    if (!driver_chooses_) {
        // There is no way to ask for a place and be refused if somebody else took it meanwhile.
        auto const place = free_place(rule.match.remote.has_value());
        if (!place)
            refuse(ENOSPC, "add rule", to_string(rule.match));
        request.fs.location = *place;
    }
    if (int const error = call(&request); error != 0)
        refuse(error, "add rule", to_string(rule.match));
    places_->take(request.fs.location);
    return request.fs.location;
}

void ethtool_ioctl::remove_rule(std::uint32_t id)
{
    ethtool_rxnfc request{};
    request.cmd = ETHTOOL_SRXCLSRLDEL;
    request.fs.location = id;
    if (int const error = call(&request); error != 0)
        refuse(error, "remove rule", "rule " + std::to_string(id));
    if (places_)
        places_->give_back(id);
}

namespace {

[[noreturn]] void refuse(netlink::verdict said, std::string operation, std::string object,
                         std::string_view attribute = {})
{
    auto advice = advice_on(operation, said.error, attribute);
    throw system_error{errno_code(said.error),
                       {std::move(operation), std::move(object), std::move(said.text), std::move(advice)}};
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

    [[nodiscard]] std::optional<std::uint32_t> id() const noexcept override { return id_; }

  private:
    netlink::socket socket_;  // the kernel unbinds when it is closed
    std::uint32_t id_;
};

// Ends with the last rings of the process. The kernel lets go of the queues later, so the end waits for it: a
// restoration would find them in use.
class zcrx_binding final : public rx_binding {
  public:
    explicit zcrx_binding(std::string interface) : interface_{std::move(interface)} {}
    ~zcrx_binding() override
    {
        queues_.clear();
        try {
            kernel_nic device{interface_};
            auto const is_ours = [&](auto const& queue) {
                return queue.io_uring && std::ranges::find(numbers_, queue.id) != numbers_.end();
            };
            retry(std::chrono::seconds{5},
                  [&](bool last) { return last || std::ranges::none_of(device.rx_queues(), is_ours); });
        } catch (std::exception const&) {
            // The interface is gone, and the queues with it.
        }
    }
    void add(zcrx_queue::config const& options)
    {
        numbers_.push_back(options.queue);
        queues_.push_back(zcrx_queue::open(options));
    }

    [[nodiscard]] std::optional<std::uint32_t> id() const noexcept override { return std::nullopt; }
    [[nodiscard]] zcrx_queues zcrx() const noexcept override { return queues_; }

  private:
    std::string interface_;
    std::vector<unsigned> numbers_;
    std::vector<std::shared_ptr<zcrx_queue>> queues_;
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
    : index_{index_of_interface(interface)},
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

void kernel_nic::set_rx_ring(std::uint32_t frames)
{
    ask(ethtool::set_rx_ring_request(ethtool_.id, index_, frames), "set rx ring", {});
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

std::vector<netdev::rx_losses> kernel_nic::rx_losses()
{
    std::vector<netdev::rx_losses> result;
    auto request = netdev::queue_stats_request(netdev_.id, index_);
    auto const said = socket_.exchange(
        request,
        [&result](netlink::generic_message const& answer) {
            if (auto const queue = netdev::read_rx_losses(answer.attrs))
                result.push_back(*queue);
        },
        [&result] { result.clear(); });
    if (said.error != 0 && said.error != EOPNOTSUPP)
        refuse(said, "get queue statistics", name());
    return result;
}

bool kernel_nic::has_array_tokens()
{
    return netdev::has_array_tokens(bind_rx_attributes());
}

std::unique_ptr<rx_binding> kernel_nic::bind_rx(std::span<unsigned const> queues, int dmabuf_fd,
                                                std::uint32_t rx_page_size)
{
    if (rx_page_size != 0 && !bind_rx_attributes().contains(uapi::netdev::dmabuf_rx_page_size))
        fail(EOPNOTSUPP, "bind-rx", name(), advice_on("bind-rx", EOPNOTSUPP, "rx-page-size"));
    return bind_with(netlink::socket{}, netdev_.id, name(), {index_, queues, dmabuf_fd, rx_page_size});
}

std::unique_ptr<rx_binding> kernel_nic::bind_zcrx(std::span<unsigned const> queues, std::span<memory_part const> parts,
                                                  std::uint32_t rx_page_size)
{
    auto made = std::make_unique<zcrx_binding>(name());
    for (std::size_t i = 0; i < queues.size(); ++i)
        made->add({.interface = name(),
                   .ifindex = index_,
                   .queue = queues[i],
                   .memory = parts[i],
                   .page_size = rx_page_size});
    return made;
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
