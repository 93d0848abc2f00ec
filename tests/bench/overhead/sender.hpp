// SPDX-License-Identifier: Apache-2.0
//
// The other end: a child process in a network namespace that sends what it is told to.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace bench {

// Nanoseconds of a clock that all processes share.
[[nodiscard]] std::uint64_t monotonic_time() noexcept;

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

    // monotonic_time() just before a write of the send() that the child is at, one of its first 1024 writes.
    [[nodiscard]] std::uint64_t time_of_write(std::size_t number) const noexcept { return (*times_)[number]; }

  private:
    struct command;
    void tell(command const& what);
    [[noreturn]] void serve(int commands, std::string const& network_namespace);
    void send_all(int fd, command const& what);

    using write_times = std::array<std::atomic<std::uint64_t>, 1024>;
    write_times* times_;  // shared with the child
    int commands_ = -1;
    pid_t child_ = -1;
};

}  // namespace bench
