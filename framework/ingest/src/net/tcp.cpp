// SPDX-License-Identifier: Apache-2.0
#include "tcp.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <gpurx/ingest/error.hpp>
#include <memory>
#include <utility>

#include "recent.hpp"

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

recent_set<asio::ip::tcp::endpoint>& silent_peers()
{
    static recent_set<asio::ip::tcp::endpoint> all;
    return all;
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

std::vector<asio::ip::tcp::endpoint> in_order_of_attempts(
    std::vector<asio::ip::tcp::endpoint> const& found,
    std::function<bool(asio::ip::tcp::endpoint const&)> const& is_silent)
{
    std::vector<asio::ip::tcp::endpoint> rest{found};
    std::vector<asio::ip::tcp::endpoint> ordered;
    while (!rest.empty()) {
        auto const other = std::ranges::find_if(
            rest, [&](auto const& each) { return !ordered.empty() && each.protocol() != ordered.back().protocol(); });
        auto const next = other == rest.end() ? rest.begin() : other;
        ordered.push_back(*next);
        rest.erase(next);
    }
    std::stable_partition(ordered.begin(), ordered.end(), [&](auto const& each) { return !is_silent(each); });
    return ordered;
}

bool is_silent(asio::ip::tcp::endpoint const& peer)
{
    return silent_peers().contains(peer);
}

void note_silent(asio::ip::tcp::endpoint const& peer)
{
    silent_peers().note(peer);
}

// ---- connection_race ----

connection_race::connection_race(asio::any_io_executor const& executor, std::vector<asio::ip::tcp::endpoint> const& to)
    : to_{in_order_of_attempts(to, is_silent)}, code_{asio::error::not_found}, next_{executor}, over_{executor}
{
    over_.expires_at(std::chrono::steady_clock::time_point::max());
}

asio::awaitable<error_code> connection_race::async_run()
{
    auto const self = shared_from_this();
    if (!is_over_)
        begin_next();
    // Without a coroutine of its own, in which clang-tidy 14 gets lost.
    static_cast<void>(co_await over_.async_wait(asio::as_tuple(asio::deferred)));
    if (!is_over_)  // this coroutine was cancelled
        finish(asio::error::operation_aborted);
    co_return code_;
}

void connection_race::close() noexcept
{
    if (is_over_ && winner_ == SIZE_MAX)
        return;
    // A winner that nobody has taken yet is no longer wanted.
    winner_ = SIZE_MAX;
    finish(asio::error::operation_aborted);
}

void connection_race::begin_next()
{
    while (attempts_.size() < to_.size()) {
        auto const attempt = attempts_.size();
        auto& socket = attempts_.emplace_back(next_.get_executor());
        open_private(socket, to_[attempt].protocol(), code_);
        if (code_)
            continue;
        ++pending_;
        socket.async_connect(to_[attempt],
                             [self = shared_from_this(), attempt](error_code code) { self->ended(attempt, code); });
        next_.expires_after(attempt_delay);
        next_.async_wait([self = shared_from_this()](error_code cancelled) {
            if (!cancelled && !self->is_over_)
                self->begin_next();
        });
        return;
    }
    if (pending_ == 0)
        finish(code_);
}

void connection_race::ended(std::size_t attempt, error_code code)
{
    --pending_;
    if (is_over_)
        return;
    if (!code)
        winner_ = attempt;
    code_ = code;
    if (code)
        begin_next();
    else
        finish({});
}

// A peer that had a start, and no answer, comes last from now on. So the next race begins with others, even if a time
// limit has ended this one.
void connection_race::finish(error_code code) noexcept
{
    is_over_ = true;
    code_ = code;
    next_.cancel();
    over_.expires_at(std::chrono::steady_clock::time_point::min());
    for (std::size_t i = 0; i < attempts_.size(); ++i) {
        error_code ignored;
        if (i == winner_)
            silent_peers().forget(to_[i]);
        else
            attempts_[i].close(ignored);
        if (i < winner_ && to_.size() > 1)
            note_silent(to_[i]);
    }
}

}  // namespace gpurx::ingest::detail
