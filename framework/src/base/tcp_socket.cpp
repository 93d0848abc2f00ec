// SPDX-License-Identifier: Apache-2.0
#include "tcp_socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/ip/udp.hpp>
#include <cerrno>

namespace gpurx::detail {

namespace {

unique_fd checked(int fd, error_code& code)
{
    if (fd < 0)
        code.assign(errno, boost::system::system_category());
    else
        code.clear();
    return unique_fd{fd};
}

bool failed(int result, error_code& code)
{
    if (result >= 0)
        return false;
    code.assign(errno, boost::system::system_category());
    return true;
}

template <class Protocol>
typename Protocol::endpoint local_endpoint(int socket, error_code& code)
{
    typename Protocol::endpoint local;
    auto size = static_cast<socklen_t>(local.capacity());
    if (failed(::getsockname(socket, local.data(), &size), code))
        return {};
    local.resize(size);
    return local;
}

// Asks the routing table: connecting a datagram socket sends nothing.
asio::ip::udp::endpoint source_towards(asio::ip::tcp::endpoint const& peer, error_code& code)
{
    auto const probe = checked(::socket(peer.data()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), code);
    if (code || failed(::connect(probe.get(), peer.data(), static_cast<socklen_t>(peer.size())), code))
        return {};
    return local_endpoint<asio::ip::udp>(probe.get(), code);
}

}  // namespace

unique_fd open_tcp(asio::ip::tcp::endpoint const& peer, error_code& code)
{
    return checked(::socket(peer.data()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP), code);
}

asio::ip::tcp::endpoint bind_towards(int socket, asio::ip::tcp::endpoint const& peer, error_code& code)
{
    auto source = source_towards(peer, code);
    if (code)
        return {};
    source.port(0);
    if (failed(::bind(socket, source.data(), static_cast<socklen_t>(source.size())), code))
        return {};
    return local_endpoint<asio::ip::tcp>(socket, code);
}

std::string to_string(asio::ip::tcp::endpoint const& end)
{
    auto const address = end.address().to_string();
    return end.address().is_v6() ? fmt::format("[{}]:{}", address, end.port())
                                 : fmt::format("{}:{}", address, end.port());
}

unique_fd duplicate(int fd, error_code& code)
{
    return checked(::fcntl(fd, F_DUPFD_CLOEXEC, 0), code);
}

}  // namespace gpurx::detail
