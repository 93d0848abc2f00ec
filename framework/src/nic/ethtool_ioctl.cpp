// SPDX-License-Identifier: Apache-2.0
#include "ethtool_ioctl.hpp"

#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "advice.hpp"
#include "failure.hpp"
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

std::optional<std::uint32_t> ethtool_ioctl::free_place()
{
    for (bool looked = false;;) {
        auto const place = places_->last_free();
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
        auto const place = free_place();
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

}  // namespace gpurx::detail
