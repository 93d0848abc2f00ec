// SPDX-License-Identifier: Apache-2.0
//
// The other end: a child process in a network namespace that takes every connection and keeps it until it is closed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace bench {

class listener {
  public:
    // Forks: construct it before any thread exists. Listens when it returns. Throws std::system_error.
    listener(std::string const& network_namespace, std::string const& address, std::uint16_t port);
    listener(listener const&) = delete;
    listener& operator=(listener const&) = delete;
    ~listener();

  private:
    pid_t child_ = -1;
};

}  // namespace bench
