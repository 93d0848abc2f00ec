// SPDX-License-Identifier: Apache-2.0
#include "bed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

#include "nic.hpp"

namespace gpurx::lab {

namespace {

asio::awaitable<error_code> read_all(receiver& rx, pattern_check& check)
{
    // Not a multiple of anything.
    std::vector<std::byte> landing(100'003);
    memory_span const span{memory_kind::host, reinterpret_cast<std::uintptr_t>(landing.data()), landing.size()};
    for (;;) {
        auto const [error, size] = co_await async_read(rx, span, token);
        check.take(span.address(), size);
        if (error)
            co_return error;
    }
}

asio::awaitable<error_code> lend_all(receiver& rx, pattern_check& check)
{
    for (;;) {
        auto [error, loan] = co_await rx.async_receive(token);
        if (error)
            co_return error;
        loan.acquire();
        check_loan(check, loan);
    }
}

// As frames: a header to the host and a body as one loan, of sizes within a page and beyond a segment. What is shorter
// than a frame at the end comes in parts.
asio::awaitable<error_code> lend_frames(receiver& rx, pattern_check& check)
{
    std::deque<rx_buffer> kept;  // some, so that parts of several batches are out at a time
    std::minstd_rand sizes{1};
    std::array<std::byte, 16> header{};
    for (;;) {
        auto const [at_header, count] = co_await async_read(rx, host_span{header}, token);
        check.take(reinterpret_cast<std::uintptr_t>(header.data()), count);
        if (at_header)
            co_return at_header;
        auto [at_body, body] = co_await rx.async_receive_exactly(1 + sizes() % 200'000, token);
        while (at_body == asio::error::eof) {
            auto [over, rest] = co_await rx.async_receive(1000, token);
            if (over)
                co_return over;
            check_loan(check, rest);
        }
        if (at_body)
            co_return at_body;
        kept.push_back(std::move(body));
        if (kept.size() > 4)
            kept.pop_front();
        auto const front = kept.back().split(kept.back().size() / 3);
        check_loan(check, front);
        check_loan(check, kept.back());
    }
}

}  // namespace

bool intact(outcome const& result, std::uint64_t bytes)
{
    return result.error == asio::error::eof && result.bytes == bytes && result.wrong_pieces == 0 &&
           result.stats.bytes() == bytes + sizeof(std::uint64_t) && result.stats.release_shortfalls == 0 &&
           result.stats.release_failures == 0;
}

std::ostream& operator<<(std::ostream& out, outcome const& result)
{
    return out << fmt::format(
               "seed {}: {} bytes, {} wrong pieces from {}, ended by: {}; device {} resteered {} linear {} host {} "
               "shortfalls {} failures {}",
               result.what.seed, result.bytes, result.wrong_pieces, result.first_wrong, result.error.message(),
               result.stats.device_bytes, result.stats.resteered_bytes, result.stats.linear_bytes,
               result.stats.host_bytes, result.stats.release_shortfalls, result.stats.release_failures);
}

transport lab_transport()
{
    auto const* const name = std::getenv("GPURX_LAB_TRANSPORT");
    if (name == nullptr || to_string(transport::devmem) == name)
        return transport::devmem;
    if (to_string(transport::zcrx) == name)
        return transport::zcrx;
    throw std::runtime_error{std::string{"GPURX_LAB_TRANSPORT must be devmem or zcrx, and is "} + name};
}

rx_session open_session(std::size_t memory, rx_session_options options)
{
    return open_session(device_memory::on_host(memory), std::move(options));
}

rx_session open_session(device_memory memory, rx_session_options options)
{
    options.interface = near_interface;
    options.transport = lab_transport();
    if (!options.notice)
        options.notice = [](std::string_view sentence) { fmt::print(stderr, "note: {}\n", sentence); };
    return rx_session{std::move(options), std::move(memory)};
}

tcp::acceptor listen_on(rx_session& session, asio::any_io_executor executor, family version)
{
    tcp::endpoint const here{near_address(version), 0};
    tcp::acceptor acceptor{std::move(executor)};
    acceptor.open(here.protocol());
    acceptor.bind(here);
    session.steer(acceptor);
    acceptor.listen(128);
    return acceptor;
}

void rethrow(std::exception_ptr failure)
{
    if (failure)
        std::rethrow_exception(failure);
}

void check_loan(pattern_check& check, rx_buffer const& loan)
{
    for (auto const& fragment : loan.fragments())
        check.take(fragment.address, fragment.size);
}

void check_loans(pattern_check& check, std::vector<rx_buffer> const& loans)
{
    for (auto const& loan : loans)
        check_loan(check, loan);
}

asio::awaitable<void> consume(receiver rx, way how, outcome& result)
{
    auto const [error, size] = co_await async_read(rx, host_span(result.what.seed), token);
    result.error = error;
    if (!error) {
        pattern_check check{result.what.seed};
        auto received = how == way::read   ? read_all(rx, check)
                        : how == way::loan ? lend_all(rx, check)
                                           : lend_frames(rx, check);
        result.error = co_await std::move(received);
        result.bytes = check.position();
        result.wrong_pieces = check.wrong_pieces();
        result.first_wrong = check.first_wrong();
    }
    result.what.bytes = result.bytes;
    result.stats = rx.stats();
}

asio::awaitable<void> connect_and_consume(rx_session& session, tcp::endpoint there, way how, outcome& result)
{
    receiver rx{co_await asio::this_coro::executor, session};
    co_await rx.async_connect(there);
    co_await consume(std::move(rx), how, result);
}

std::vector<outcome> transfer(rx_session& session, std::vector<stream> const& streams, family version, way how,
                              role what)
{
    std::vector<outcome> outcomes(streams.size());
    std::list<peer_sender> senders;
    asio::io_context context{1};
    std::optional<tcp::acceptor> acceptor;
    if (what == role::accepts) {
        acceptor = listen_on(session, context.get_executor(), version);
        for (auto const& next : streams)
            senders.emplace_back(acceptor->local_endpoint(), next);
        asio::co_spawn(
            context,
            [&]() -> asio::awaitable<void> {
                for (auto& result : outcomes) {
                    receiver rx{context, session, co_await acceptor->async_accept(asio::use_awaitable)};
                    asio::co_spawn(context, consume(std::move(rx), how, result), rethrow);
                }
            },
            rethrow);
    } else {
        for (std::size_t i = 0; i < streams.size(); ++i) {
            auto const& sender = senders.emplace_back(version, streams[i]);
            asio::co_spawn(context, connect_and_consume(session, sender.endpoint(), how, outcomes[i]), rethrow);
        }
    }
    context.run();
    return outcomes;
}

}  // namespace gpurx::lab
