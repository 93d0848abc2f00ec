// SPDX-License-Identifier: Apache-2.0
//
// The other end of the connections: a child process, so that its CPU time is not the receiver's.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace gpurx::bench {

class feeder {
  public:
    // Forks: construct it before any thread exists, and before CUDA is used. Throws std::system_error.
    feeder();
    feeder(feeder const&) = delete;
    feeder& operator=(feeder const&) = delete;
    ~feeder();

    // Each returns at once; the child works through them in order.
    // To 127.0.0.1.
    void connect(std::uint16_t port);
    // As fast as it can, or with a rate, in bytes per second, a piece at a time.
    void send(std::uint64_t bytes, std::uint64_t rate = 0);
    void close();

  private:
    struct command;
    void tell(command const& what) const;
    [[noreturn]] static void serve(int commands);

    int commands_ = -1;
    pid_t child_ = -1;
};

}  // namespace gpurx::bench
