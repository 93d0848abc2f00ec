// SPDX-License-Identifier: Apache-2.0
//
// Programs of users without rights, and clients of gpurxd that keep to no more than its protocol.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/syscalls.hpp"
#include "bed.hpp"
#include "child.hpp"
#include "lease/daemon_channel.hpp"
#include "lease/daemon_protocol.hpp"
#include "nic/flow_rule.hpp"

namespace gpurx::lab {

using test::child_report;

inline constexpr uid_t unknown_user = 65534;
inline constexpr std::uint64_t stream_bytes = 4 * mebibyte;

// Makes this process one of that user, without rights.
void drop_rights(bool own_user_namespace, uid_t user = unknown_user);

// A program of a user without rights: a child that runs `body` and reports its failed expectations.
class unprivileged_program {
  public:
    template <class Body>
    explicit unprivileged_program(Body body)
    {
        int ends[2];
        REQUIRE(::pipe(ends) == 0);
        reads_.reset(ends[0]);
        detail::unique_fd writes{ends[1]};
        pid_ = ::fork();
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            // Catch2's handlers allocate: one would wait for ever if its signal came within an allocation.
            ::signal(SIGALRM, SIG_DFL);
            ::signal(SIGTERM, SIG_DFL);
            ::alarm(120);
            child_report report;
            try {
                body(report);
            } catch (std::exception const& failure) {
                report.expect(false, failure.what());
            }
            auto const& text = report.text();
            [[maybe_unused]] auto const written = ::write(writes.get(), text.data(), text.size());
            ::_exit(0);
        }
    }
    unprivileged_program(unprivileged_program const&) = delete;
    unprivileged_program& operator=(unprivileged_program const&) = delete;
    ~unprivileged_program() { kill(); }

    void kill()
    {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            ::waitpid(std::exchange(pid_, -1), nullptr, 0);
        }
    }
    // Waits for its end, and returns what failed.
    [[nodiscard]] std::string report();
    // The same, and prints it.
    [[nodiscard]] bool succeeds();

  private:
    detail::unique_fd reads_;
    pid_t pid_ = -1;
};

// A body of a program: opens a session, connects to the peer once, and compares every byte.
std::function<void(child_report&)> receives_from(tcp::endpoint there, way how, bool own_user_namespace = false,
                                                 bool may_reach_host = false, std::uint64_t bytes = stream_bytes);

// Takes one connection at `here`, and compares every byte.
void receive_one(gpurx::rx_session& session, tcp::endpoint const& here, child_report& child);

// A body of a program: opens a session with two queues, and takes one connection at `here`.
std::function<void(child_report&)> receives_one(tcp::endpoint const& here);

// Sends a message that the library does not send, and returns the daemon's answer; empty: it hung up.
[[nodiscard]] std::optional<detail::daemon_reply> answer_to(detail::daemon_channel& channel,
                                                            detail::daemon_request const& what, int descriptor);
bool refuses(std::optional<detail::daemon_reply> const& reply, int error);
bool was_opened(std::optional<detail::daemon_reply> const& reply);
bool was_steered(std::optional<detail::daemon_reply> const& reply);

enum class binding { plain, of_any_address };

detail::unique_fd listening_at(tcp::endpoint const& here, binding how = binding::plain);
detail::unique_fd listening_on(std::uint16_t port);

bool says(std::string const& page, std::string_view line);

// The matches of the rules that the NIC has now. Everybody may ask.
std::vector<detail::flow_match> matches_now();

// A client that keeps to no more than the protocol, with queues of dms0.
class plain_client {
  public:
    explicit plain_client(std::string const& socket);
    [[nodiscard]] std::optional<detail::daemon_reply> ask(detail::daemon_request const& what, int socket = -1)
    {
        return answer_to(channel_, what, socket);
    }

  private:
    detail::daemon_channel channel_;
    device_memory memory_;
};

}  // namespace gpurx::lab
