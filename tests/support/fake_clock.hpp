// SPDX-License-Identifier: Apache-2.0
//
// Time that passes only when a test lets it: what waits for a second then takes no second, and no machine is too slow.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace gpurx::test {

// A thread of this process that waits in the kernel, and how often it has done so.
struct sleeping_thread {
    std::string id;
    std::uint64_t times = 0;

    friend bool operator==(sleeping_thread const&, sleeping_thread const&) = default;
};

// All threads but this one; empty if one of them runs, or could.
[[nodiscard]] inline std::optional<std::vector<sleeping_thread>> sleeping_others()
{
    constexpr std::string_view count = "\nvoluntary_ctxt_switches:\t";
    auto const own = std::to_string(::gettid());
    std::vector<sleeping_thread> all;
    for (auto const& each : std::filesystem::directory_iterator{"/proc/self/task"}) {
        auto const id = each.path().filename().string();
        if (id == own)
            continue;
        std::array<char, 4096> bytes{};
        auto const file = ::open((each.path() / "status").c_str(), O_RDONLY | O_CLOEXEC);
        auto const size = file < 0 ? -1 : ::read(file, bytes.data(), bytes.size());
        ::close(file);
        std::string_view const text{bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
        auto const at = text.find(count);
        if (text.find("\nState:\tS") == std::string_view::npos || at == std::string_view::npos)
            return std::nullopt;
        std::uint64_t times = 0;
        std::from_chars(text.data() + at + count.size(), text.data() + text.size(), times);
        all.push_back({id, times});
    }
    return all;
}

// Whether at some moment in this call every other thread of the process slept: one that was awake in between has slept
// once more since.
[[nodiscard]] inline bool others_sleep()
{
    auto const before = sleeping_others();
    return before && sleeping_others() == before;
}

// Whether some of what a socket of this process has sent has not been acknowledged yet: it is on its way, or holds up
// what follows.
[[nodiscard]] inline bool is_on_its_way()
{
    return std::ranges::any_of(std::filesystem::directory_iterator{"/proc/self/fd"}, [](auto const& each) {
        tcp_info state{};
        socklen_t size = sizeof state;
        auto const number = std::stoi(each.path().filename());
        return ::getsockopt(number, IPPROTO_TCP, TCP_INFO, &state, &size) == 0 && state.tcpi_unacked > 0 &&
               (state.tcpi_state == TCP_ESTABLISHED || state.tcpi_state == TCP_CLOSE_WAIT);
    });
}

// While one of these lives the steady clock stands still, but for what passes here. Programs that link fake_now.cpp can
// have one.
class fake_clock {
  public:
    using duration = std::chrono::steady_clock::duration;

    fake_clock() { state().begin(); }
    fake_clock(fake_clock const&) = delete;
    fake_clock& operator=(fake_clock const&) = delete;
    ~fake_clock() { state().end(); }

    // Whether this program's steady clock can be made to stand still.
    [[nodiscard]] static bool is_linked() { return state().linked; }

    // Runs handlers until `ready`. Time passes where there is nothing but that to wait for: no handler is left, and no
    // other thread has anything to do. False if ten minutes of it did not help.
    template <class Ready>
    [[nodiscard]] bool run_until(boost::asio::io_context& io, Ready ready)
    {
        using namespace std::chrono_literals;
        for (auto const end = std::chrono::steady_clock::now() + 10min; std::chrono::steady_clock::now() < end;) {
            if (settle(io, ready))
                return true;
            pass(io, step);
        }
        return false;
    }
    // Runs all handlers that there are now, and in so much time from now.
    void run_for(boost::asio::io_context& io, duration time)
    {
        auto const never = [] { return false; };
        auto const end = std::chrono::steady_clock::now() + time;
        settle(io, never);
        for (auto now = end - time; now < end; now = std::chrono::steady_clock::now()) {
            pass(io, std::min<duration>(step, end - now));
            settle(io, never);
        }
    }
    // Another thread waits until so much time has passed, or until the clock is gone.
    static void sleep_for(duration time) { state().sleep(time); }
    // Another thread waits for what others do, or until the clock is gone.
    template <class Condition>
    static void sleep_until(Condition holds)
    {
        while (state().stands > 0 && !holds())
            sleep_for(step);
    }

    // When a socket, of which that is the inode, has had so many bytes of data for the first time; empty: no clock
    // stands still. A look at each socket before time passes makes that exact. For fake_now.cpp.
    [[nodiscard]] static std::optional<std::chrono::steady_clock::time_point> arrival(std::uint64_t socket,
                                                                                      std::uint64_t bytes)
    {
        return state().arrival(socket, bytes);
    }
    // What the steady clock says when the machine's says that. For fake_now.cpp.
    [[nodiscard]] static duration shown(duration real) noexcept { return state().shown(real); }
    static bool link() noexcept { return state().linked = true; }

  private:
    static constexpr std::chrono::milliseconds step{10};
    static constexpr std::chrono::microseconds pause{500};  // of the machine's time

    struct shared {
        void begin()
        {
            std::scoped_lock const lock{mutex};
            stands_at = std::chrono::steady_clock::now().time_since_epoch();
            ++stands;
        }
        void end()
        {
            {
                std::scoped_lock const lock{mutex};
                auto const at = stands_at.load();
                if (--stands > 0)
                    return;
                ahead = ahead.load() + (at - std::chrono::steady_clock::now().time_since_epoch());
            }
            passed.notify_all();
        }
        void advance(duration time)
        {
            {
                std::scoped_lock const lock{mutex};
                stands_at = stands_at.load() + time;
            }
            passed.notify_all();
        }
        void sleep(duration time)
        {
            std::unique_lock lock{mutex};
            auto const until = stands_at.load() + time;
            passed.wait(lock, [&] { return stands == 0 || stands_at.load() >= until; });
        }
        [[nodiscard]] std::optional<std::chrono::steady_clock::time_point> arrival(std::uint64_t socket,
                                                                                   std::uint64_t bytes)
        {
            std::scoped_lock const lock{mutex};
            if (stands == 0)
                return std::nullopt;
            auto& last = arrivals[socket];
            if (last.first != bytes || last.second == std::chrono::steady_clock::time_point{})
                last = {bytes, std::chrono::steady_clock::now()};
            return last.second;
        }
        [[nodiscard]] duration shown(duration real) const noexcept
        {
            return stands > 0 ? stands_at.load() : real + ahead.load();
        }

        std::atomic<bool> linked = false;
        std::atomic<unsigned> stands = 0;  // clocks
        std::atomic<duration> stands_at{};
        std::atomic<duration> ahead{};  // so that time goes on where it stood
        std::mutex mutex;
        std::condition_variable passed;
        std::map<std::uint64_t, std::pair<std::uint64_t, std::chrono::steady_clock::time_point>> arrivals;
    };

    static shared& state() noexcept
    {
        static shared one;
        return one;
    }

    // True as soon as `ready`; false when nothing is left to happen but that time passes.
    template <class Ready>
    bool settle(boost::asio::io_context& io, Ready ready)
    {
        // A reactor may need a second look, and a thread that is awake some more.
        constexpr unsigned few = 2;
        constexpr unsigned many = 50;
        for (unsigned looks = 0, enough = few;; ++looks) {
            io.restart();
            if (ready())
                return true;
            if (io.poll_one() > 0) {
                looks = 0;
                enough = many;
            } else if (looks < enough) {
                continue;
            } else if (!others_sleep()) {
                looks = 0;
                enough = many;
                std::this_thread::yield();
            } else if (is_on_its_way()) {
                std::this_thread::sleep_for(pause);
            } else if (io.poll_one() == 0) {
                return ready();  // what the others did last is there by now
            }
        }
    }
    void pass(boost::asio::io_context& io, duration time)
    {
        state().advance(time);
        // A timer that has long expired makes `io` look at the others, too.
        boost::asio::steady_timer look{io, std::chrono::steady_clock::now() - std::chrono::hours{1}};
        auto looked = false;
        look.async_wait([&](auto) { looked = true; });
        io.restart();
        while (!looked)
            io.run_one();
    }
};

}  // namespace gpurx::test
