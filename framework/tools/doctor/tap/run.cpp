// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>

#include "../observe.hpp"
#include "base/failure.hpp"
#include "filter.hpp"
#include "flow_report.hpp"
#include "flow_table.hpp"
#include "nic/process.hpp"
#include "pcapng.hpp"
#include "ring.hpp"

namespace gpurx::doctor::tap {

namespace {

using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;

constexpr std::uint32_t most_captured = 14 + 60 + 60;  // Ethernet, IPv4, TCP with all options
constexpr auto interval = 1s;                          // between two tables, and two looks at the sessions
constexpr std::size_t rows_without_terminal = 20;

moment now_since_epoch()
{
    return std::chrono::system_clock::now().time_since_epoch();
}

detail::unique_fd signals_that_end()
{
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGINT);
    ::sigaddset(&set, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    detail::unique_fd fd{::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)};
    if (!fd)
        detail::fail(errno, "wait for", "signals");
    return fd;
}

selections chosen_now(options const& chosen, unsigned index)
{
    if (!chosen.chosen.empty())
        return chosen.chosen;
    std::string failure;
    auto const journal = journal_in(chosen.state_directory, index, failure);
    if (!failure.empty())
        detail::fail(EIO, "read the journal of", chosen.interface, failure);
    return journal ? of_sessions(journal->owners) : selections{};
}

filter filter_for(selections const& wanted, std::string const& interface)
{
    try {
        auto made = make_filter(wanted);
        if (made.widened)
            fmt::print(stderr, "too many flows for one filter: the tap takes all flows of their ports\n");
        return made;
    } catch (std::length_error const& error) {
        detail::fail(E2BIG, "make filter for", interface, error.what());
    }
}

// The file that the headers go to, if any. Bytes are written when there are many, and at the end.
class capture_file {
  public:
    explicit capture_file(options const& chosen) : name_{chosen.file}
    {
        if (name_.empty())
            return;
        if (name_ != "-")
            opened_.reset(::open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        fd_ = name_ == "-" ? STDOUT_FILENO : opened_.get();
        if (fd_ < 0)
            detail::fail(errno, "write", name_);
        put_section(waiting_, "gpurx-doctor tap");
        put_interface(waiting_, chosen.interface, most_captured);
    }

    void put(tapped_packet const& packet, std::size_t headers)
    {
        if (!name_.empty())
            put_packet(waiting_, packet.when, packet.captured.first(headers), packet.length, packet.outgoing);
        if (waiting_.size() >= 64 << 10)
            write();
    }
    void end(tap_counts const& tap)
    {
        if (!name_.empty())
            put_statistics(waiting_, now_since_epoch(), tap.packets, tap.dropped);
        write();
    }
    void write()
    {
        for (std::size_t done = 0; done < waiting_.size();) {
            auto const count = ::write(fd_, waiting_.data() + done, waiting_.size() - done);
            if (count < 0 && errno != EINTR)
                detail::fail(errno, "write", name_);
            done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
        }
        waiting_.clear();
    }

  private:
    std::string name_;
    detail::unique_fd opened_;
    int fd_ = -1;
    bytes waiting_;
};

// Prints tables. On a terminal each takes the place of the one before.
class screen {
  public:
    explicit screen(options const& chosen)
        : out_{chosen.file == "-" ? stderr : stdout},
          is_live_{chosen.file.empty() && !chosen.json},
          is_terminal_{::isatty(STDOUT_FILENO) == 1}
    {}

    void show(options const& chosen, flow_table const& seen, tap_counts const& tap, steady::time_point now)
    {
        if (is_live_) {
            fmt::print(out_, "{}{}\n", is_terminal_ ? "\x1b[H\x1b[2J" : "",
                       live(chosen.interface, seen, earlier_, now - shown_, tap, rows()));
            std::fflush(out_);
        }
        earlier_ = seen.flows();
        shown_ = now;
    }
    void end(options const& chosen, flow_table const& seen, tap_counts const& tap) const
    {
        fmt::print(out_, "{}", chosen.json ? json(chosen.interface, seen, tap) : totals(chosen.interface, seen, tap));
        std::fflush(out_);
    }

  private:
    [[nodiscard]] std::size_t rows() const
    {
        constexpr std::size_t around = 6;  // head, what is said below, the prompt
        winsize size{};
        if (!is_terminal_ || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row <= around)
            return rows_without_terminal;
        return size.ws_row - around;
    }

    std::FILE* out_;
    bool is_live_;
    bool is_terminal_;
    std::map<flow_key, flow_counts> earlier_;
    steady::time_point shown_ = steady::now();
};

class running_tap {
  public:
    explicit running_tap(options const& chosen)
        : chosen_{chosen},
          index_{detail::index_of_interface(chosen.interface)},
          wanted_{chosen_now(chosen, index_)},
          signals_{signals_that_end()},
          file_{chosen},
          screen_{chosen},
          ring_{chosen.interface, index_, chosen.buffer, first_filter().program}
    {}

    void run()
    {
        while (!is_over()) {
            take();
            if (auto const now = steady::now(); now - looked_ >= interval) {
                looked_ = now;
                follow_sessions();
                file_.write();
                screen_.show(chosen_, seen_, counts(), now);
            }
        }
        // Packets in the block that the kernel still fills come when its time is over.
        std::array none{pollfd{.fd = ring_.fd(), .events = POLLIN, .revents = 0}};
        ::poll(none.data(), none.size(), static_cast<int>(2 * packet_ring::patience.count()));
        take();
        file_.end(counts());
        screen_.end(chosen_, seen_, counts());
    }

  private:
    [[nodiscard]] filter first_filter() const
    {
        if (wanted_.empty())
            detail::fail(ENOENT, "find flows of sessions on", chosen_.interface,
                         "start a session, or choose flows by --port or --flow");
        return filter_for(wanted_, chosen_.interface);
    }

    // Waits for packets a little. Whether a signal came, the time is over or the interface is gone.
    bool is_over()
    {
        std::array waiting{pollfd{.fd = ring_.fd(), .events = POLLIN, .revents = 0},
                           pollfd{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
        if (::poll(waiting.data(), waiting.size(), static_cast<int>(packet_ring::patience.count())) < 0 &&
            errno != EINTR)
            detail::fail(errno, "wait for packets of", chosen_.interface);
        if ((waiting[0].revents & POLLERR) != 0 && ring_.take_error() == ENETDOWN) {
            fmt::print(stderr, "{} is down\n", chosen_.interface);
            if (::if_nametoindex(chosen_.interface.c_str()) != index_)
                return true;
        }
        return (waiting[1].revents & POLLIN) != 0 || (chosen_.time && steady::now() - begin_ >= *chosen_.time);
    }

    void take()
    {
        ring_.take([this](tapped_packet const& packet) {
            auto const read = parse_frame(packet.captured, packet.length);
            if (!read) {
                ++odd_;
                return;
            }
            seen_.take(*read, packet.outgoing, packet.when);
            file_.put(packet, read->headers);
        });
    }

    // Sessions steer other flows than a moment ago.
    void follow_sessions()
    {
        auto now = chosen_now(chosen_, index_);
        if (now.empty() || now == wanted_)
            return;
        wanted_ = std::move(now);
        ring_.set_filter(filter_for(wanted_, chosen_.interface).program);
    }

    tap_counts counts()
    {
        auto const ring = ring_.counts();
        return {ring.packets, ring.dropped, odd_, steady::now() - begin_};
    }

    options const& chosen_;
    unsigned index_;
    selections wanted_;
    detail::unique_fd signals_;
    capture_file file_;
    screen screen_;
    packet_ring ring_;
    flow_table seen_;
    std::uint64_t odd_ = 0;
    steady::time_point begin_ = steady::now();
    steady::time_point looked_ = begin_;
};

}  // namespace

void run(options const& chosen)
{
    running_tap{chosen}.run();
}

}  // namespace gpurx::doctor::tap
