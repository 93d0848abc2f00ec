// SPDX-License-Identifier: Apache-2.0
#include "tcp.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <gpurx/ingest/error.hpp>
#include <memory>
#include <utility>

namespace gpurx::ingest::detail {

namespace {

// Belongs to one strand.
struct lookup {
    explicit lookup(asio::any_io_executor const& executor) : resolver{executor}, end{executor} {}

    asio::ip::tcp::resolver resolver;
    asio::steady_timer end;
    bool is_done = false;
    resolution found;
};

asio::awaitable<resolution> wait_for(std::shared_ptr<lookup> what, std::string host, std::string port)
{
    what->resolver.async_resolve(host, port,
                                 [what](error_code code, asio::ip::tcp::resolver::results_type const& results) {
                                     what->is_done = true;
                                     what->found.code = code;
                                     what->found.endpoints.assign(results.begin(), results.end());
                                     what->end.cancel();
                                 });
    auto const [cancelled] = co_await what->end.async_wait(asio::as_tuple(asio::use_awaitable));
    if (what->is_done)
        co_return std::move(what->found);
    what->resolver.cancel();
    error_code const code = cancelled ? error_code{asio::error::operation_aborted} : error_code{errc::gave_up};
    co_return resolution{.code = code, .endpoints = {}};
}

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

asio::awaitable<resolution> async_resolve(asio::any_io_executor executor, std::string host, std::string port,
                                          std::chrono::steady_clock::time_point until)
{
    auto const strand = asio::make_strand(executor);
    auto const what = std::make_shared<lookup>(strand);
    what->end.expires_at(until);
    co_return co_await asio::co_spawn(strand, wait_for(what, std::move(host), std::move(port)), asio::use_awaitable);
}

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
