// SPDX-License-Identifier: Apache-2.0
//
// The other end: a child process in a network namespace that sends what it is told to.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace bench {

class sender {
  public:
    // Forks: construct it before any thread exists. Throws std::system_error.
    explicit sender(std::string const& network_namespace);
    sender(sender const&) = delete;
    sender& operator=(sender const&) = delete;
    ~sender();

    // Each returns at once; the child works through them in order.
    void connect(std::string const& address, std::uint16_t port);
    // `bytes` in writes of `chunk`, with a pause after each.
    void send(std::uint64_t bytes, std::uint64_t chunk, std::uint64_t pause_microseconds);
    void close();

  private:
    struct command;
    void tell(command const& what);
    [[noreturn]] static void serve(int commands, std::string const& network_namespace);

    int commands_ = -1;
    pid_t child_ = -1;
};

}  // namespace bench
