// SPDX-License-Identifier: Apache-2.0
#include "private_socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>

namespace gpurx::ingest::detail {

namespace {

template <class Socket>
void open(Socket& what, asio::ip::tcp const& protocol, error_code& code)
{
    auto const descriptor = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    if (descriptor < 0) {
        code.assign(errno, boost::system::system_category());
        return;
    }
    what.assign(protocol, descriptor, code);
    if (code)
        ::close(descriptor);
}

}  // namespace

void open_private(asio::ip::tcp::socket& what, asio::ip::tcp const& protocol, error_code& code)
{
    open(what, protocol, code);
}

void open_private(asio::ip::tcp::acceptor& what, asio::ip::tcp const& protocol, error_code& code)
{
    open(what, protocol, code);
}

void make_private(asio::ip::tcp::socket& what) noexcept
{
    ::fcntl(what.native_handle(), F_SETFD, FD_CLOEXEC);
}

asio::awaitable<error_code> async_connect_private(asio::ip::tcp::socket& what,
                                                  std::vector<asio::ip::tcp::endpoint> const& to)
{
    error_code code = asio::error::not_found;
    for (auto const& peer : to) {
        error_code ignored;
        what.close(ignored);
        open_private(what, peer.protocol(), code);
        if (code)
            continue;
        // Without a coroutine of its own, in which clang-tidy 14 gets lost.
        auto const [refused] = co_await what.async_connect(peer, asio::as_tuple(asio::deferred));
        code = what.is_open() ? refused : error_code{asio::error::operation_aborted};
        if (!code || code == asio::error::operation_aborted)
            break;
    }
    co_return code;
}

}  // namespace gpurx::ingest::detail
