// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <gpurx/ingest/error.hpp>

#include "../net/url.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

constexpr std::size_t output_limit = 64 << 10;
constexpr std::size_t shown_of_errors = 500;  // the end

[[noreturn]] void fail_program(std::string const& program, std::string_view what)
{
    throw system_error{errc::no_credentials,
                       {.operation = "get credentials from",
                        .object = printable(program, 200),
                        .kernel_message = {},
                        .advice = fmt::format("the program of credential_process {}", printable(what, 1000))}};
}

std::string words_of_system(int number)
{
    return error_code{number, boost::system::system_category()}.message();
}

class descriptor {
  public:
    descriptor() = default;
    explicit descriptor(int number) noexcept : number_{number} {}
    descriptor(descriptor const&) = delete;
    descriptor& operator=(descriptor const&) = delete;
    ~descriptor() { close(); }

    [[nodiscard]] int get() const noexcept { return number_; }
    void reset(int number) noexcept
    {
        close();
        number_ = number;
    }
    void close() noexcept
    {
        if (number_ >= 0)
            ::close(number_);
        number_ = -1;
    }

  private:
    int number_ = -1;
};

struct pipe_ends {
    explicit pipe_ends(std::string const& program)
    {
        std::array<int, 2> both{};
        if (::pipe2(both.data(), O_CLOEXEC) != 0)
            fail_program(program, fmt::format("cannot start: {}", words_of_system(errno)));
        read.reset(both[0]);
        write.reset(both[1]);
        ::fcntl(both[0], F_SETFL, O_NONBLOCK);
    }

    // Returns false at the end.
    [[nodiscard]] bool take(std::string& to) const
    {
        std::array<char, 4096> block{};
        for (;;) {
            auto const more = ::read(read.get(), block.data(), block.size());
            if (more < 0 && errno == EINTR)
                continue;
            if (more <= 0)
                return more < 0 && errno == EAGAIN;
            to.append(block.data(), static_cast<std::size_t>(more));
            if (to.size() > output_limit)
                return true;
        }
    }

    descriptor read, write;
};

// Kills the program unless it has ended.
class child {
  public:
    child(std::vector<std::string> const& command, int output, int errors)
    {
        std::vector<char*> words;
        for (auto const& each : command)
            words.push_back(const_cast<char*>(each.c_str()));  // NOLINT: it is not written to
        words.push_back(nullptr);
        ::posix_spawn_file_actions_t actions{};
        ::posix_spawnattr_t attributes{};
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
        ::posix_spawn_file_actions_adddup2(&actions, output, 1);
        ::posix_spawn_file_actions_adddup2(&actions, errors, 2);
        ::posix_spawnattr_init(&attributes);
        // This thread blocks all signals (io_threads), and Python ignores SIGPIPE.
        sigset_t set;
        sigemptyset(&set);
        ::posix_spawnattr_setsigmask(&attributes, &set);
        sigaddset(&set, SIGPIPE);
        ::posix_spawnattr_setsigdefault(&attributes, &set);
        ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        auto const failed = ::posix_spawnp(&id_, words.front(), &actions, &attributes, words.data(), environ);
        ::posix_spawnattr_destroy(&attributes);
        ::posix_spawn_file_actions_destroy(&actions);
        if (failed != 0)
            fail_program(command.front(), fmt::format("cannot start: {}", words_of_system(failed)));
        is_running_ = true;
        end_.reset(static_cast<int>(::syscall(SYS_pidfd_open, id_, 0)));
        if (end_.get() >= 0)
            return;
        auto const why = errno;
        stop();
        fail_program(command.front(), fmt::format("cannot be watched: {}", words_of_system(why)));
    }
    child(child const&) = delete;
    child& operator=(child const&) = delete;
    ~child() { stop(); }

    // Becomes readable at the program's end.
    [[nodiscard]] int end() const noexcept { return end_.get(); }
    // Returns the program's status, of wait(). 0 if this process ignores its children.
    int wait() noexcept
    {
        int status = 0;
        while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
        }
        is_running_ = false;
        return status;
    }

  private:
    void stop() noexcept
    {
        if (!is_running_)
            return;
        ::kill(id_, SIGKILL);
        static_cast<void>(wait());
    }

    pid_t id_ = -1;
    bool is_running_ = false;
    descriptor end_;
};

int milliseconds_until(std::chrono::steady_clock::time_point until)
{
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    return static_cast<int>(std::clamp<decltype(left)>(left, 0, INT_MAX));
}

std::string words_of(int status, std::string const& errors)
{
    auto const how = WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                         : fmt::format("ended with status {}", WEXITSTATUS(status));
    auto const last = std::string_view{errors}.substr(0, errors.find_last_not_of(" \t\r\n") + 1);
    return last.empty() ? how : fmt::format("{}: {}", how, last);
}

}  // namespace

std::string output_of(std::vector<std::string> const& command, std::chrono::steady_clock::time_point until)
{
    auto const& program = command.front();
    pipe_ends output{program};
    pipe_ends errors{program};
    child running{command, output.write.get(), errors.write.get()};
    output.write.close();
    errors.write.close();
    std::string text;
    std::string complaints;
    std::array<::pollfd, 3> watched{
        {{output.read.get(), POLLIN, 0}, {errors.read.get(), POLLIN, 0}, {running.end(), POLLIN, 0}}};
    auto const take_all = [&] {
        if (!output.take(text))
            watched[0].fd = -1;
        if (!errors.take(complaints))
            watched[1].fd = -1;
        if (text.size() > output_limit)
            fail_program(program, "writes more than 64 KiB");
        complaints.erase(0, complaints.size() - std::min(complaints.size(), shown_of_errors));
    };
    // A process that the program leaves behind may keep the pipes open.
    while ((watched[2].revents & POLLIN) == 0) {
        auto const ready = ::poll(watched.data(), watched.size(), milliseconds_until(until));
        if (ready == 0)
            fail_program(program, "has not ended in time");
        take_all();
    }
    take_all();
    if (auto const status = running.wait(); status != 0)
        fail_program(program, words_of(status, complaints));
    return text;
}

}  // namespace gpurx::ingest::detail::s3
