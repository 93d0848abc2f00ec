// SPDX-License-Identifier: Apache-2.0
#include "openings.hpp"

#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <memory>
#include <system_error>

#include "tap/filter.hpp"
#include "tap/ring.hpp"

namespace bench {

namespace {

using gpurx::detail::unique_fd;
namespace tap = gpurx::doctor::tap;

constexpr std::size_t ring_size = std::size_t{2} << 20;

std::chrono::nanoseconds clock_now(clockid_t clock) noexcept
{
    timespec now{};
    ::clock_gettime(clock, &now);
    return std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec};
}

unique_fd open_socket(int protocol_at_socket, unsigned interface)
{
    unique_fd socket{::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, protocol_at_socket)};
    sockaddr_ll where{};
    where.sll_family = AF_PACKET;
    where.sll_protocol = htons(ETH_P_ALL);
    where.sll_ifindex = static_cast<int>(interface);
    if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr const*>(&where), sizeof where) != 0)
        throw std::system_error{errno, std::generic_category(), "packet socket"};
    return socket;
}

// What is open afterwards: closed by whoever has it.
struct opened {
    unique_fd socket;
    std::unique_ptr<tap::packet_ring> ring;
};

opened open(opening what, unsigned interface, tap::filter const& filter, std::string const& name)
{
    constexpr unsigned all_interfaces = 0;
    switch (what) {
        case opening::everywhere:
            return {open_socket(htons(ETH_P_ALL), all_interfaces), {}};
        case opening::one_interface:
            return {open_socket(htons(ETH_P_ALL), interface), {}};
        case opening::protocol_later:
            return {open_socket(0, interface), {}};
        case opening::tap:
            break;
    }
    return {{}, std::make_unique<tap::packet_ring>(name, interface, ring_size, filter.program)};
}

}  // namespace

char const* to_string(opening value) noexcept
{
    constexpr std::array names{"everywhere", "one_interface", "protocol_later", "tap"};
    return names.at(static_cast<std::size_t>(value));
}

std::chrono::nanoseconds cpu_time() noexcept
{
    return clock_now(CLOCK_THREAD_CPUTIME_ID);
}

opening_cost measure(opening what, unsigned interface, grace_periods const& counter)
{
    std::array<char, IF_NAMESIZE> name{};
    ::if_indextoname(interface, name.data());
    auto const filter = tap::make_filter(tap::of_port(5000));
    auto const before = counter.waited_for();
    auto const start = clock_now(CLOCK_MONOTONIC);
    auto const cpu_start = cpu_time();
    auto const held = open(what, interface, filter, name.data());
    auto const cpu_taken = cpu_time() - cpu_start;
    auto const time = clock_now(CLOCK_MONOTONIC) - start;
    return {time, cpu_taken, counter.waited_for() - before};
}

}  // namespace bench
