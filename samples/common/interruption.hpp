// SPDX-License-Identifier: Apache-2.0
//
// SIGINT and SIGTERM.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <thread>

// Watches on a thread of its own: the others may be held up in a write to a pipe or a disk.
class interruption {
  public:
    // `stop` runs on that thread. A program that has not ended half a second later is ended, with 128 and the number of
    // the signal; what it leaves undone then on a NIC, the next session undoes.
    explicit interruption(std::function<void()> stop);
    interruption(interruption const&) = delete;
    interruption& operator=(interruption const&) = delete;
    ~interruption();

    // That came; 0: none.
    [[nodiscard]] int signal() const noexcept { return signal_; }

  private:
    std::atomic<int> signal_ = 0;
    boost::asio::io_context context_{1};
    boost::asio::signal_set signals_;
    boost::asio::steady_timer patience_;
    std::jthread watch_;
};
