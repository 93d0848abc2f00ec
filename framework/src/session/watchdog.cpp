// SPDX-License-Identifier: Apache-2.0
#include "watchdog.hpp"

#include <fmt/format.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>

#include "base/byte_size.hpp"
#include "base/tcp_socket.hpp"
#include "base/thread.hpp"

namespace gpurx::detail {

std::uint64_t pages_of_a_segment(std::size_t page_size) noexcept
{
    // A segment that begins in the middle of a page takes one more.
    return round_up(64 * kibibyte, page_size) / page_size + 1;
}

bool is_dry(pool_sample const& sample, std::uint64_t pages, std::size_t page_size) noexcept
{
    return sample.in_flight + pages_of_a_segment(page_size) > pages;
}

pool_verdict lock_up_detector::look_at(lock_up_sample const& sample) const noexcept
{
    if (!sample.needs_pool() || !sample.pool || !is_dry(*sample.pool, pages_, page_size_))
        return pool_verdict::moving;
    return sample.pages_on_loan == 0 ? pool_verdict::locked_up : pool_verdict::starved;
}

// Pages that wait in the pool for recycling count as in flight, so a full count alone proves nothing. Packets that
// found no page do; and where the driver does not count these, not one page that changes hands, while data waits behind
// a hole or the program holds most of the memory.
bool lock_up_detector::lacks_pages(pool_sample const& then, lock_up_sample const& now) const noexcept
{
    if (then.allocation_failures && now.pool->allocation_failures)
        return *now.pool->allocation_failures > *then.allocation_failures;
    return now.pool->in_flight == then.in_flight && (now.pages_on_loan == 0 || 2 * now.pages_on_loan > pages_);
}

pool_verdict lock_up_detector::judge(lock_up_sample const& sample) noexcept
{
    auto const verdict = look_at(sample);
    if (verdict == pool_verdict::moving) {
        reset();
        return verdict;
    }
    if (!since_ || since_->bytes_delivered != sample.bytes_delivered || look_at(*since_) != verdict) {
        reset();
        since_ = sample;
        return pool_verdict::moving;
    }
    if (told_ || sample.at - since_->at < limit_ || !lacks_pages(*since_->pool, sample))
        return pool_verdict::moving;
    if (verdict == pool_verdict::locked_up)
        since_.reset();
    else
        told_ = true;
    return verdict;
}

void lock_up_detector::reset() noexcept
{
    since_.reset();
    told_ = false;
}

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
