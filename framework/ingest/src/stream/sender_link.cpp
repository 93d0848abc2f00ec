// SPDX-License-Identifier: Apache-2.0
#include "sender_link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>

#include "../net/tcp.hpp"
#include "connection.hpp"

namespace gpurx::ingest::detail {

namespace {

using asio::ip::tcp;

// For an answer to the hello, which needs no room at the receiver.
constexpr std::chrono::minutes greeting_time{1};

[[noreturn]] void refuse_options(std::string why)
{
    throw system_error{
        make_error_code(boost::system::errc::invalid_argument),
        {.operation = "make", .object = "tensor sender", .kernel_message = {}, .advice = std::move(why)}};
}

// Host and port; an empty host where the sender listens.
std::pair<std::string, std::uint16_t> parts_of(tensor_sender_options const& options)
{
    if (options.address.empty() != options.listen.has_value())
        refuse_options("set either address or listen");
    std::string_view const text = options.address;
    auto const colon = std::min(text.rfind(':'), text.size());
    auto host = text.substr(0, colon);
    auto const port = text.substr(std::min(colon + 1, text.size()));
    if (host.size() > 1 && host.front() == '[' && host.back() == ']')
        host = host.substr(1, host.size() - 2);
    std::uint16_t number = 0;
    auto const [end, failure] = std::from_chars(port.data(), port.data() + port.size(), number);
    auto const is_port = failure == std::errc{} && end == port.data() + port.size();
    if (!options.listen && (host.empty() || !is_port))
        refuse_options(fmt::format("\"{}\" is not HOST:PORT of a receiver", text));
    return {std::string{host}, number};
}

tcp::acceptor listening(asio::any_io_executor const& executor, std::optional<tcp::endpoint> const& where)
{
    tcp::acceptor result{executor};
    if (!where)
        return result;
    auto const check = [&](error_code code) {
        if (code)
            throw system_error{code,
                               {.operation = "listen on",
                                .object = fmt::format("{}:{}", where->address().to_string(), where->port()),
                                .kernel_message = {},
                                .advice = {}}};
    };
    error_code code;
    open_private(result, where->protocol(), code);
    check(code);
    result.set_option(tcp::acceptor::reuse_address{true}, code);
    result.bind(*where, code);
    check(code);
    result.listen(1, code);
    check(code);
    return result;
}

}  // namespace

sender_link::sender_link(asio::any_io_executor const& executor, tensor_sender_options const& options)
    : executor_{executor}, timeout_{options.timeout}, socket_{executor}, acceptor_{executor}, end_{executor}
{
    std::tie(host_, port_) = parts_of(options);
    acceptor_ = listening(executor, options.listen);
}

std::optional<tcp::endpoint> sender_link::local_endpoint() const
{
    if (!acceptor_.is_open())
        return std::nullopt;
    return acceptor_.local_endpoint();
}

bool sender_link::has_ended()
{
    std::byte one{};
    error_code code;
    socket_.receive(asio::buffer(&one, 1), tcp::socket::message_peek, code);
    return code != asio::error::would_block;
}

// What the last of them completes with once one has, or timed_out. `end_` has its time.
template <class... Operations>
asio::awaitable<error_code> sender_link::in_time(Operations... operations)
{
    auto const ended =
        co_await asio::experimental::make_parallel_group(std::move(operations)..., end_.async_wait(asio::deferred))
            .async_wait(asio::experimental::wait_for_one(), asio::use_awaitable);
    auto const is_over = std::get<0>(ended)[0] == sizeof...(Operations);
    constexpr auto last = std::tuple_size_v<std::decay_t<decltype(ended)>> - 1;
    auto const timer = std::get<last>(ended);
    if (is_over && !timer)
        co_return asio::error::timed_out;
    if (is_over)  // cancelled
        co_return timer;
    co_return std::get<last - 1>(ended);
}

asio::awaitable<error_code> sender_link::accept(time_point until)
{
    end_.expires_at(until);
    auto const code = co_await in_time(acceptor_.async_accept(socket_, asio::deferred));
    if (!code)
        make_private(socket_);
    co_return code;
}

asio::awaitable<error_code> sender_link::connect(time_point until)
{
    resolution found;
    // The system's resolver takes a thread for each question.
    if (auto const address = asio::ip::make_address(host_, found.code); !found.code)
        found.endpoints.emplace_back(address, port_);
    else
        found = co_await async_resolve(executor_, host_, std::to_string(port_), until);
    if (found.code)
        co_return found.code == errc::gave_up ? error_code{asio::error::timed_out} : found.code;
    end_.expires_at(until);
    auto const race = race_ = std::make_shared<connection_race>(executor_, found.endpoints);
    auto code = co_await in_time(asio::co_spawn(executor_, race->async_run(), asio::deferred));
    // The refusal that came last says more than that the time is over.
    if (code == asio::error::timed_out && race->code() != asio::error::operation_aborted)
        code = race->code();
    if (!code && race == race_) {
        socket_ = race->take();
        race_.reset();
    }
    co_return code || socket_.is_open() ? code : error_code{asio::error::operation_aborted};
}

asio::awaitable<void> sender_link::open(time_point until)
{
    close();
    if (timeout_.count() > 0)
        until = std::min(until, std::chrono::steady_clock::now() + timeout_);
    // (Not one co_await of either: g++ 12 destroys the frame of the one that was chosen.)
    error_code code;
    if (acceptor_.is_open())
        code = co_await accept(until);
    else
        code = co_await connect(until);
    if (code) {
        close();
        lose(code);
    }
    socket_.native_non_blocking(true);
    socket_.non_blocking(true);
    error_code ignored;
    socket_.set_option(tcp::no_delay{true}, ignored);
    watch_peer(socket_.native_handle());
}

asio::awaitable<void> sender_link::read(std::span<std::byte> to)
{
    while (!to.empty()) {
        auto const size = read_some(to);
        to = to.subspan(size);
        if (size == 0)
            co_await wait(false);
    }
}

asio::awaitable<void> sender_link::write(std::span<std::byte const> from)
{
    while (!from.empty()) {
        auto const size = write_some({asio::buffer(from.data(), from.size())});
        from = from.subspan(size);
        if (size == 0)
            co_await wait(true);
    }
}

std::size_t sender_link::read_some(std::span<std::byte> to)
{
    error_code code;
    auto const size = socket_.read_some(asio::buffer(to.data(), to.size()), code);
    if (code == asio::error::would_block)
        return 0;
    if (code == asio::error::eof)
        lose(asio::error::connection_reset,
             is_greeted ? "the receiver has closed the connection"
                        : "the receiver closed the connection before its answer: it has no free flow, or is older "
                          "than version 2 of the protocol");
    if (code)
        lose(code);
    return size;
}

std::size_t sender_link::write_some(std::vector<asio::const_buffer> const& from)
{
    error_code code;
    auto const size = socket_.write_some(from, code);
    if (code && code != asio::error::would_block)
        lose(code);
    return size;
}

asio::awaitable<void> sender_link::wait(bool writes)
{
    auto const limit = timeout_.count() == 0 && !is_greeted ? greeting_time : timeout_;
    if (limit.count() > 0)
        end_.expires_after(limit);
    else
        end_.expires_at(time_point::max());
    auto const code = co_await in_time(
        socket_.async_wait(tcp::socket::wait_read, asio::deferred),
        socket_.async_wait(writes ? tcp::socket::wait_write : tcp::socket::wait_error, asio::deferred));
    if (code == asio::error::timed_out)
        throw link_lost{
            code,
            fmt::format("the receiver accepted no byte for {} ms (timeout): it has no free memory, or has stopped",
                        limit.count()),
            true};
    if (code == asio::error::operation_aborted && !socket_.is_open())
        lose(code);
}

void sender_link::close() noexcept
{
    if (auto const race = std::exchange(race_, nullptr))
        race->close();
    error_code ignored;
    socket_.close(ignored);
    is_greeted = false;
}

void sender_link::lose(error_code code, std::string why) const
{
    if (code == asio::error::operation_aborted)
        throw boost::system::system_error{code};
    throw link_lost{code, std::move(why)};
}

}  // namespace gpurx::ingest::detail
