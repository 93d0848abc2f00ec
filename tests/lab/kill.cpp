// SPDX-License-Identifier: Apache-2.0
//
// A receiver that is killed at any moment of its life leaves nothing behind that the next one, or recover(), does not
// set right. The victim is the sample receive_file; its life is cut into phases, so that the short ones are met too.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/syscalls.hpp"
#include "bed.hpp"
#include "lease/journal.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
namespace detail = gpurx::detail;

namespace {

using clock_type = std::chrono::steady_clock;
using microseconds = std::chrono::microseconds;

constexpr unsigned all_rounds = 50;  // and more, until every phase was met; or GPURX_TEST_KILLS

// Of a receiver's life, in order.
enum class phase : unsigned { starting, setting_up, receiving, closing, over };
constexpr std::size_t phase_count = 4;
constexpr char const* phase_names[] = {"before the lease", "setting up", "receiving", "closing"};

std::string errors_of(detail::unique_fd const& file)
{
    std::string text(8192, '\0');
    auto const size = ::pread(file.get(), text.data(), text.size(), 0);
    text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return text;
}

// A program that runs, until it ends or is killed.
class victim {
  public:
    explicit victim(std::vector<std::string> command) : errors_{::memfd_create("stderr", MFD_CLOEXEC)}
    {
        std::vector<char*> arguments;
        for (auto& argument : command)
            arguments.push_back(argument.data());
        arguments.push_back(nullptr);
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
        ::posix_spawn_file_actions_adddup2(&actions, errors_.get(), STDERR_FILENO);
        auto const error = ::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
        ::posix_spawn_file_actions_destroy(&actions);
        if (error != 0)
            throw std::system_error{error, std::generic_category(), command[0]};
    }
    victim(victim const&) = delete;
    victim& operator=(victim const&) = delete;
    ~victim() { kill(); }

    [[nodiscard]] pid_t pid() const noexcept { return pid_; }
    [[nodiscard]] std::string errors() const { return errors_of(errors_); }
    [[nodiscard]] bool has_ended()
    {
        if (!status_)
            wait(WNOHANG);
        return status_.has_value();
    }
    [[nodiscard]] bool has_succeeded() { return has_ended() && WIFEXITED(*status_) && WEXITSTATUS(*status_) == 0; }
    // False: it had ended before.
    bool kill()
    {
        if (!status_) {
            ::kill(pid_, SIGKILL);
            wait(0);
        }
        return WIFSIGNALED(*status_) && WTERMSIG(*status_) == SIGKILL;
    }

  private:
    void wait(int options)
    {
        int status = 0;
        if (::waitpid(pid_, &status, options) == pid_)
            status_ = status;
    }

    detail::unique_fd errors_;
    pid_t pid_ = -1;
    std::optional<int> status_;
};

detail::journal_owner const* entry_of(detail::journal const& log, pid_t pid)
{
    auto const found = std::ranges::find(log.owners, pid, [](auto const& owner) { return owner.key.pid; });
    return found != log.owners.end() ? &*found : nullptr;
}

// One life of receive_file: it accepts, with a rule by port and an RSS context, or it connects, with a rule by 5-tuple.
class life {
  public:
    life(role what, way how, std::uint16_t port, stream sent)
    {
        std::vector<std::string> command{
            GPURX_RECEIVE_FILE, "--interface", near_interface, "--transport", std::string{to_string(lab_transport())},
            "--memory-size",    "8MiB",        "--queues"};
        command.push_back(what == role::accepts ? "2" : "1");
        if (how == way::loan)
            command.push_back("--loan");
        tcp::endpoint const here{near_address(family::v4), port};
        sender_ = what == role::accepts ? std::make_unique<peer_sender>(here, sent)
                                        : std::make_unique<peer_sender>(family::v4, sent);
        auto const where = what == role::accepts ? here : sender_->endpoint();
        command.push_back(what == role::accepts ? "--listen" : "--connect");
        command.push_back(fmt::format("{}:{}", where.address().to_string(), where.port()));
        receiver_.emplace(std::move(command));
    }

    [[nodiscard]] victim& receiver() noexcept { return *receiver_; }
    // The sender is told of the end before the receiver gives up its rules, memory and settings.
    [[nodiscard]] phase now()
    {
        if (receiver_->has_ended())
            return phase::over;
        if (sender_->has_ended())
            return phase::closing;
        if (sender_->sent() > 0)
            return phase::receiving;
        return entry_of(journal_now(), receiver_->pid()) != nullptr ? phase::setting_up : phase::starting;
    }
    void wait_for(phase wanted)
    {
        while (now() < wanted)
            std::this_thread::sleep_for(1ms);
    }

  private:
    std::unique_ptr<peer_sender> sender_;
    std::optional<victim> receiver_;
};

class killer {
  public:
    explicit killer(std::uint64_t seed) : random_{seed} {}

    // Lets one receiver live to its end, to know how long each phase is.
    void measure()
    {
        auto whole = begin_life();
        for (unsigned i = 0; i < phase_count; ++i) {
            auto const start = clock_type::now();
            whole->wait_for(phase{i + 1});
            lengths_[i] = std::max(lengths_[i], std::chrono::duration_cast<microseconds>(clock_type::now() - start));
        }
        INFO(whole->receiver().errors());
        REQUIRE(whole->receiver().has_succeeded());
    }

    // Kills one at a random moment of a random phase. Returns what the journal says of it. False: it had ended before.
    [[nodiscard]] bool kill_one(detail::journal& left)
    {
        auto const wanted = static_cast<unsigned>(below(phase_count));
        auto doomed = begin_life();
        doomed->wait_for(phase{wanted});
        std::this_thread::sleep_for(microseconds{below(static_cast<std::uint64_t>(lengths_[wanted].count()) + 1)});
        auto met = doomed->now();
        if (!doomed->receiver().kill())
            return false;
        left = journal_now();
        bool const named = entry_of(left, doomed->receiver().pid()) != nullptr;
        if (met == phase::starting && named)
            met = phase::setting_up;
        ++met_[static_cast<unsigned>(met)];
        traces_ += named || !left.changes.empty();
        rules_ += named && !entry_of(left, doomed->receiver().pid())->rules.empty();
        return true;
    }

    [[nodiscard]] bool met_all() const noexcept
    {
        return std::ranges::none_of(met_, [](unsigned count) { return count == 0; });
    }
    [[nodiscard]] std::string summary() const
    {
        std::vector<std::string> words;
        for (unsigned i = 0; i < phase_count; ++i)
            words.push_back(fmt::format("{} {} ({} ms long)", phase_names[i], met_[i], lengths_[i].count() / 1000));
        return fmt::format("killed {}; {} left changes of the NIC, {} of them rules", fmt::join(words, ", "), traces_,
                           rules_);
    }

  private:
    [[nodiscard]] std::uint64_t below(std::uint64_t limit)
    {
        return std::uniform_int_distribution<std::uint64_t>{0, limit - 1}(random_);
    }
    [[nodiscard]] std::unique_ptr<life> begin_life()
    {
        auto const what = below(2) == 0 ? role::accepts : role::connects;
        auto const how = below(2) == 0 ? way::read : way::loan;
        return std::make_unique<life>(what, how, port_++, stream{below(1000), 4 * mebibyte});
    }

    std::mt19937_64 random_;
    std::array<microseconds, phase_count> lengths_{};
    std::array<unsigned, phase_count> met_{};
    unsigned traces_ = 0;
    unsigned rules_ = 0;
    std::uint16_t port_ = 9000;  // one for each life: the last one's may still be in use
};

std::uint64_t seed_of_run()
{
    auto const* const text = std::getenv("GPURX_TEST_SEED");
    return text != nullptr ? std::stoull(text) : std::random_device{}();
}

unsigned rounds_of_run()
{
    auto const* const text = std::getenv("GPURX_TEST_KILLS");
    return text != nullptr ? static_cast<unsigned>(std::stoul(text)) : all_rounds;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "a receiver that is killed leaves nothing that cannot be set right", "[kill]")
{
    if (!std::filesystem::exists(GPURX_RECEIVE_FILE))
        SKIP("built without the samples: there is no receive_file to kill");
    auto const seed = seed_of_run();
    fmt::print("GPURX_TEST_SEED={} repeats this choice of moments\n", seed);
    CAPTURE(seed);
    killer hand{seed};
    // The first life is longer than others: the program is not in the page cache yet.
    hand.measure();

    auto const rounds = rounds_of_run();
    unsigned killed = 0;
    for (unsigned attempt = 0; killed < rounds || !hand.met_all(); ++attempt) {
        REQUIRE(attempt < 4 * rounds);
        detail::journal left;
        if (!hand.kill_one(left))
            continue;
        CAPTURE(killed, detail::serialise(left));
        if (killed % 2 == 0) {
            auto const done = gpurx::rx_session::recover(near_interface);
            INFO(fmt::format("recovered: {}", fmt::join(done, "; ")));
            CHECK(done.empty() == left.owners.empty());
            CHECK(pools_vanish());
            CHECK(nic_settings() == settings_before());
        }
        {
            auto session = open_session(8 * mebibyte, {.max_flows = 2, .notice = [](std::string_view) {}});
            auto const outcomes = transfer(session, {{killed, mebibyte}}, family::v4, way::read, role::accepts);
            INFO(outcomes[0]);
            CHECK(intact(outcomes[0], mebibyte));
            CHECK(session.stats().host_bytes == 0);
        }
        CHECK(pools_vanish());
        CHECK(nic_settings() == settings_before());
        ++killed;
        if (killed % 10 == 0)
            fmt::print("{} of {} killed\n", killed, rounds);
    }
    fmt::print("{}\n", hand.summary());
}
