// SPDX-License-Identifier: Apache-2.0
//
// A generic netlink socket: one request at a time, until the kernel has said how it ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "fork.hpp"
#include "message.hpp"

namespace gpurx::detail::netlink {

// Not thread-safe. The descriptor is closed on exec, and in a child that is forked: answers are for one process, and
// memory that was bound to a NIC through it is unbound only when nobody has it open.
class socket {
  public:
    // Throws system_error.
    socket();

    // Sends `what` and calls `answer` for every data message until the acknowledgement, or the end of the dump. What is
    // no part of the answer is passed over. Returns the kernel's verdict; throws system_error only where there is none
    // (the socket failed, or ETIMEDOUT). A dump that the kernel marks as torn by a change is asked for again, so
    // `restart` must forget what `answer` has gathered.
    using on_answer = std::function<void(generic_message const&)>;
    [[nodiscard]] verdict exchange(request& what, on_answer const& answer, std::function<void()> const& restart = {});

    // Multicast messages of `group` are kept by the kernel from now on, until take_notifications().
    void join(std::uint32_t group);
    // Calls `each` for every message that has arrived. Does not wait.
    void take_notifications(on_answer const& each);

    // How long the kernel may take to answer a request.
    static constexpr std::chrono::seconds patience{10};

  private:
    void send(bytes_view bytes);
    // One datagram of the kernel, or nothing if none comes before `deadline`.
    [[nodiscard]] bytes_view receive(std::chrono::steady_clock::time_point deadline);
    [[nodiscard]] bool wait_readable(std::chrono::steady_clock::time_point deadline) const;

    unshared_fd fd_;
    std::uint32_t port_ = 0;
    std::uint32_t sequence_ = 0;
    std::vector<std::byte> buffer_;
};

}  // namespace gpurx::detail::netlink
