// SPDX-License-Identifier: Apache-2.0
//
// Connections that several files share: an operation on one of them waits until there are as many as it can use. Those
// that a file keeps for its next operation are closed when another needs them.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/concurrent_channel.hpp>
#include <gpurx/error.hpp>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace gpurx::python {

class flow_budget;

// Keeps connections between its operations.
class connection_keeper {
  public:
    connection_keeper() = default;
    connection_keeper(connection_keeper const&) = delete;
    connection_keeper& operator=(connection_keeper const&) = delete;
    virtual ~connection_keeper() = default;
    // Closes them. Called from any thread while no operation of the file goes on, and none can begin.
    virtual void disconnect() noexcept = 0;
};

// What a file keeps when nothing of it is going on.
struct kept_connections {
    void const* file;
    unsigned most;
    std::weak_ptr<connection_keeper> by;
};

// An operation's. When it is destroyed it is over, or not wanted any more.
class turn {
  public:
    turn(turn const&) = delete;
    turn& operator=(turn const&) = delete;
    ~turn();

    // Once. Completes when it has come. Cancellation: terminal.
    [[nodiscard]] asio::awaitable<void> async_come();
    // From any thread: it cannot wait any more.
    void hurry() noexcept;

  private:
    friend class flow_budget;
    turn(asio::any_io_executor const& where, std::shared_ptr<flow_budget> of, void const* file, unsigned flows,
         std::list<kept_connections> keeps)
        : of_{std::move(of)}, file_{file}, flows_{flows}, keeps_{std::move(keeps)}, call_{where, 1}
    {}

    std::shared_ptr<flow_budget> of_;
    void const* file_;
    unsigned flows_;
    std::list<kept_connections> keeps_;  // one when it is over, or none
    asio::experimental::concurrent_channel<void(error_code)> call_;
};

// Thread safety: safe.
class flow_budget : public std::enable_shared_from_this<flow_budget> {
  public:
    explicit flow_budget(unsigned flows) noexcept : flows_{flows}, free_{flows} {}

    // `file`: an address that is no other file's; its operations run one after the other. `flows`: the connections that
    // this one makes, at most. What `can_wait` goes behind all that cannot; else the order is that of the calls. While
    // a file is busy those of others go on, but who needs more connections than are free is not overtaken. `keeper`: of
    // a file that keeps its connections; those that were used longest ago are closed first.
    [[nodiscard]] std::shared_ptr<turn> wait(asio::any_io_executor const& where, void const* file, unsigned flows,
                                             bool can_wait, std::weak_ptr<connection_keeper> keeper = {});

  private:
    friend class turn;
    using turns = std::list<turn*>;

    void leave(turn& one) noexcept;
    void hurry(turn& one) noexcept;
    // With the mutex.
    void admit() noexcept;
    [[nodiscard]] bool is_busy(void const* file) const noexcept;
    void take(turn const& one) noexcept;

    unsigned const flows_;
    std::mutex mutex_;  // guards what follows
    unsigned free_;
    turns waiting_;  // that cannot
    turns later_;
    turns running_;
    std::list<kept_connections> kept_;  // of files that are not busy; with those that run `flows_` at most
};

}  // namespace gpurx::python
