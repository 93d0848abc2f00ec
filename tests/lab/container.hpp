// SPDX-License-Identifier: Apache-2.0
//
// A container as an operator sets it up: a process in a network namespace of its own, which has a netkit device with
// queues of dms0 leased to it, and nothing else of the NIC.
#pragma once

#include <sys/types.h>

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/syscalls.hpp"
#include "child.hpp"
#include "nic/kernel_nic.hpp"

namespace gpurx::lab {

inline constexpr char leased_interface[] = "nk0";
inline constexpr char leased_address[] = "10.78.0.2";

// Why no queue can be leased here; empty: it can. Netkit has leased queues since Linux 7.1.
[[nodiscard]] std::string why_no_leases();

// What dms0's owner does for a container, undone in reverse: RSS off the queues, header split on, and packets for the
// container's address handed to netkit, by a program at dms0's ingress.
class leased_queues {
  public:
    explicit leased_queues(std::vector<unsigned> queues);
    leased_queues(leased_queues const&) = delete;
    leased_queues& operator=(leased_queues const&) = delete;
    ~leased_queues();

    // The container's end goes into the network namespace of this process, and gets its address.
    void move_to(pid_t process);
    // Connections to this port arrive on the first of the queues.
    void steer(std::uint16_t port);
    void split_headers(bool on);

  private:
    void set_up();
    void undo();
    void lease(unsigned queue);
    void redirect();

    detail::kernel_nic nic_;
    std::vector<unsigned> queues_;
    std::vector<std::uint32_t> rules_;
    detail::unique_fd redirection_;
};

enum class rights {
    of_the_host,      // root, in a network namespace that the host's user namespace owns
    of_nobody_else,   // nobody on the host, root in a user namespace that owns the network namespace
    none_in_network,  // root, without CAP_NET_ADMIN
};

// A process in such a network namespace. It waits for enter().
class container {
  public:
    container(rights what, std::function<void(test::child_report&)> body);
    container(container const&) = delete;
    container& operator=(container const&) = delete;
    ~container();

    [[nodiscard]] pid_t pid() const noexcept { return pid_; }
    // Lets it go, with the device.
    void enter(leased_queues& leased);
    // Waits for its end, and returns what it found wrong.
    [[nodiscard]] std::string report();

  private:
    pid_t pid_ = -1;
    detail::unique_fd go_;
    detail::unique_fd reads_;
};

}  // namespace gpurx::lab
