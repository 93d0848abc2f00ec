// SPDX-License-Identifier: Apache-2.0
#include "traffic.hpp"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <stdexcept>
#include <utility>

namespace bench {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t memory_size = std::size_t{64} << 20;
constexpr std::uint64_t endless = std::uint64_t{1} << 50;

std::int64_t now()
{
    return std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count();
}

gpurx::rx_session open_session(unsigned flows)
{
    return gpurx::rx_session{{.interface = "dms0", .transport = gpurx::transport::devmem, .max_flows = flows},
                             gpurx::device_memory::on_host(memory_size)};
}

}  // namespace

traffic::traffic(unsigned flows) : session_{open_session(flows)}, last_(flows)
{
    tcp::acceptor acceptor{io_};
    acceptor.open(tcp::v4());
    tcp::endpoint const any_port{gpurx::lab::near_address(gpurx::lab::family::v4), 0};
    acceptor.bind(any_port);
    session_.steer(acceptor);
    acceptor.listen();
    for (unsigned i = 0; i < flows; ++i) {
        senders_.emplace_back(acceptor.local_endpoint(), gpurx::lab::stream{i, endless});
        gpurx::receiver rx{io_, session_, acceptor.accept()};
        asio::co_spawn(io_, receive(std::move(rx), last_[i]), asio::detached);
    }
    thread_ = std::thread{[this] { io_.run(); }};
    for (int i = 0; i < 1000 && receives_ < 10UL * flows; ++i)
        std::this_thread::sleep_for(10ms);
    if (receives_ == 0)
        throw std::runtime_error{"nothing is received"};
}

traffic::~traffic()
{
    io_.stop();
    thread_.join();
    for (auto& sender : senders_)
        sender.stop();
}

void traffic::forget_gaps() noexcept
{
    from_ = now();
    largest_ = 0;
}

std::chrono::nanoseconds traffic::largest_gap() const noexcept
{
    auto const time = now();
    auto largest = largest_.load();
    for (auto const& last : last_)
        largest = std::max(largest, time - std::max(from_.load(), last.load()));
    return std::chrono::nanoseconds{largest};
}

asio::awaitable<void> traffic::receive(gpurx::receiver rx, moment& last)
{
    last = now();
    for (;;) {
        auto [error, loan] = co_await rx.async_receive(asio::as_tuple(asio::deferred));
        if (error)
            co_return;
        note_receive(last);
    }
}

void traffic::note_receive(moment& last) noexcept
{
    auto const time = now();
    auto const gap = time - std::max(last.load(), from_.load());
    if (gap > largest_)
        largest_ = gap;
    last = time;
    ++receives_;
}

}  // namespace bench
