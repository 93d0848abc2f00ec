// SPDX-License-Identifier: Apache-2.0
#include "calls.hpp"

#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

namespace bench {

namespace {

std::atomic<bool> logging{false};

char const* family_name(int family)
{
    return family == AF_PACKET ? "AF_PACKET" : "another";
}

char const* option_name(int level, int name)
{
    if (level == SOL_SOCKET && name == SO_ATTACH_FILTER)
        return "SOL_SOCKET, SO_ATTACH_FILTER";
    if (level != SOL_PACKET)
        return "another";
    return name == PACKET_VERSION   ? "SOL_PACKET, PACKET_VERSION"
           : name == PACKET_RX_RING ? "SOL_PACKET, PACKET_RX_RING"
                                    : "SOL_PACKET, another";
}

void log_bind(int fd, sockaddr const* address, socklen_t size, int result)
{
    sockaddr_ll where{};
    if (address->sa_family == AF_PACKET && size == sizeof where)
        std::memcpy(&where, address, size);
    std::printf("trace bind(%d, {sa_family=%s, sll_protocol=htons(%#x), sll_ifindex=%d}, %u) = %d\n", fd,
                family_name(address->sa_family), ntohs(where.sll_protocol), where.sll_ifindex, size, result);
}

}  // namespace

call_log::call_log() noexcept
{
    logging = true;
}

call_log::~call_log()
{
    logging = false;
}

}  // namespace bench

extern "C" {

int socket(int family, int type, int protocol) noexcept
{
    auto const result = static_cast<int>(::syscall(SYS_socket, family, type, protocol));
    if (bench::logging)
        std::printf("trace socket(%s, %#x, htons(%d)) = %d\n", bench::family_name(family), static_cast<unsigned>(type),
                    ntohs(static_cast<std::uint16_t>(protocol)), result);
    return result;
}

int setsockopt(int fd, int level, int name, void const* value, socklen_t size) noexcept
{
    auto const result = static_cast<int>(::syscall(SYS_setsockopt, fd, level, name, value, size));
    if (bench::logging)
        std::printf("trace setsockopt(%d, %s, ..., %u) = %d\n", fd, bench::option_name(level, name), size, result);
    return result;
}

int bind(int fd, sockaddr const* address, socklen_t size) noexcept
{
    auto const result = static_cast<int>(::syscall(SYS_bind, fd, address, size));
    if (bench::logging)
        bench::log_bind(fd, address, size, result);
    return result;
}

}  // extern "C"
