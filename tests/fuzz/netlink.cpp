// SPDX-License-Identifier: Apache-2.0
//
// A datagram of netlink messages, whatever its bytes: reading stays within it, ends, and repeats itself.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "nic/families.hpp"
#include "nic/netlink.hpp"

namespace {

using namespace gpurx::detail;

void check(bool holds)
{
    if (!holds)
        std::abort();
}

// Everything that any answer is read as.
void read_as_all(netlink::attributes const& attrs)
{
    static_cast<void>(netlink::read_family(attrs));
    netlink::policy policy;
    policy.add(attrs);
    static_cast<void>(policy.accepted());
    static_cast<void>(netdev::read_binding(attrs));
    static_cast<void>(netdev::read_rx_queue(attrs));
    static_cast<void>(netdev::read_page_pool(attrs));
    static_cast<void>(netdev::read_rx_losses(attrs));
    static_cast<void>(ethtool::read_rings(attrs));
    static_cast<void>(ethtool::read_channels(attrs));
    static_cast<void>(ethtool::read_feature(attrs, ethtool::feature::ntuple_filters));
    static_cast<void>(ethtool::read_rss_context(attrs));
}

std::size_t read_message(netlink::message const& one)
{
    if (auto const said = netlink::read_verdict(one)) {
        check(said->error >= 0);
        check(said->text.size() <= one.payload.size());
    }
    if (auto const data = netlink::read_generic(one)) {
        read_as_all(data->attrs);
        static_cast<void>(ethtool::is_rings_change(*data, 4));
    }
    return one.payload.size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size)
{
    auto const all = std::as_bytes(std::span{data, size});
    std::size_t read = 0;
    for (netlink::bytes_view rest{all}; auto const one = netlink::take_message(rest);)
        read += read_message(*one) + NLMSG_HDRLEN;
    check(read <= size);

    // The same bytes as a request of which the kernel points at some attribute.
    netlink::verdict said;
    for (said.offset = 0; *said.offset < 64; ++*said.offset)
        static_cast<void>(netdev::bind_rx_attribute(all, said));
    return 0;
}
