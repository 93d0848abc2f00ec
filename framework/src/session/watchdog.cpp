// SPDX-License-Identifier: Apache-2.0
#include "watchdog.hpp"

#include <fmt/format.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>

#include "base/tcp_socket.hpp"
#include "base/thread.hpp"

namespace gpurx::detail {

namespace {

// Often enough to see progress between two samples, seldom enough to cost nothing.
std::chrono::milliseconds period_for(std::chrono::milliseconds limit) noexcept
{
    using namespace std::chrono_literals;
    return std::clamp<std::chrono::milliseconds>(limit / 4, 10ms, 1s);
}

}  // namespace

watchdog::watchdog(watchdog_subject& subject, std::chrono::milliseconds limit, lock_up_detector detector)
    : subject_{subject},
      period_{period_for(limit)},
      detector_{detector},
      thread_{start_thread("gpurx-watchdog", [this](std::stop_token const& stop) { run(stop); })}
{}

void watchdog::flow_waits() noexcept
{
    // Pairs with sleep_until_a_flow_waits(): either it sees the flow, or this sees it asleep.
    if (!asleep_.load())
        return;
    {
        std::scoped_lock const lock{mutex_};
        asleep_.store(false);
    }
    wake_.notify_one();
}

bool watchdog::sleep_until_a_flow_waits(std::stop_token const& stop)
{
    detector_.reset();
    asleep_.store(true);
    if (subject_.look()) {
        asleep_.store(false);
        return !stop.stop_requested();
    }
    std::unique_lock lock{mutex_};
    return wake_.wait(lock, stop, [this] { return !asleep_.load(); });
}

void watchdog::run(std::stop_token const& stop)
{
    for (;;) {
        {
            std::unique_lock lock{mutex_};
            wake_.wait_for(lock, stop, period_, [] { return false; });
        }
        if (stop.stop_requested())
            return;
        auto const sample = subject_.look();
        if (!sample) {
            if (!sleep_until_a_flow_waits(stop))
                return;
            continue;
        }
        switch (detector_.judge(*sample)) {
            case pool_verdict::moving:
                break;
            case pool_verdict::locked_up:
                subject_.end_a_flow();
                break;
            case pool_verdict::starved:
                subject_.tell_starved();
                break;
        }
    }
}

void abort_connection(int socket) noexcept
{
    // shutdown() alone would leave the out-of-order data, and with it the pages, until the descriptor is closed; and
    // loans keep it open.
    sockaddr const nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
    if (::connect(socket, &nobody, sizeof nobody) != 0)
        ::shutdown(socket, SHUT_RDWR);
}

std::string connection_name(int socket)
{
    asio::ip::tcp::endpoint local;
    asio::ip::tcp::endpoint remote;
    auto size = static_cast<socklen_t>(local.capacity());
    if (::getsockname(socket, local.data(), &size) != 0)
        return "a flow that has ended";
    local.resize(size);
    size = static_cast<socklen_t>(remote.capacity());
    if (::getpeername(socket, remote.data(), &size) != 0)
        return to_string(local);
    remote.resize(size);
    return fmt::format("{} <- {}", to_string(local), to_string(remote));
}

std::uint64_t bytes_held(int socket) noexcept
{
    std::array<std::uint32_t, SK_MEMINFO_VARS> counts{};
    auto size = static_cast<socklen_t>(sizeof counts);
    if (::getsockopt(socket, SOL_SOCKET, SO_MEMINFO, counts.data(), &size) != 0)
        return 0;
    return counts[SK_MEMINFO_RMEM_ALLOC];
}

}  // namespace gpurx::detail
