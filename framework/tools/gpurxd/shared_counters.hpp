// SPDX-License-Identifier: Apache-2.0
//
// Counters of gpurxd and its clients' processes, in a file that all of them map. The file outlives each of them, as
// clients outlive the daemon. A client has a slot in it for as long as its process lives: a lock that the kernel ends.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/syscalls.hpp"
#include "metrics.hpp"

namespace gpurx::gpurxd {

struct counter_table;

// The directory of this file, and of the locks of clients.
[[nodiscard]] std::string clients_directory(std::string const& state_directory);

// Thread safety: safe; several processes, too.
class shared_counters {
  public:
    // Makes the file, and its directory, if there is none of this version. Throws system_error.
    [[nodiscard]] static shared_counters open(std::string const& state_directory);
    shared_counters(shared_counters&& other) noexcept;
    shared_counters& operator=(shared_counters&&) = delete;
    ~shared_counters();

    void count_connection() noexcept;
    void count_refusal(request_kind what, refusal_reason why) noexcept;
    // Takes a slot, which is this object's until its end. Nothing happens if all are taken: the client is not shown.
    void show(client_metrics const& who);
    // Of the client that is shown, if one is.
    void show_rules(std::uint64_t now, std::uint64_t made, std::uint64_t taken_away) noexcept;

    [[nodiscard]] daemon_metrics read() const;

  private:
    shared_counters(detail::unique_fd file, counter_table* shared) noexcept;

    detail::unique_fd file_;
    counter_table* shared_;
    std::optional<std::size_t> slot_;
};

}  // namespace gpurx::gpurxd
