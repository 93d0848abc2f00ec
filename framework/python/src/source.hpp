// SPDX-License-Identifier: Apache-2.0
//
// A file of tensors, on a server or on this machine, as long as Python has it. It is opened again after a failed
// operation, or if it was not kept open. One deadline covers all of that.
//
// Also a budget of connections that several files share. An operation on a file waits until it gets as many connections
// as it can use. Connections that a file keeps for its next operation are closed when another file needs them.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/concurrent_channel.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <gpurx/error.hpp>
#include <gpurx/ingest/object.hpp>
#include <gpurx/ingest/safetensors.hpp>
#include <gpurx/session.hpp>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace gpurx::python {

// Opens the object at `url`. `session` may be null for a file of this machine.
[[nodiscard]] ingest::object object_at(rx_session* session, std::string const& url, ingest::fetch_options options);

// Operations run in sequence. After a failed one, the next opens the file again.
class source {
  public:
    // `goes_on`: the bytes behind the header are fetched next. Otherwise the connection closes, as for one of many
    // files. Sets `met_tls`, unless it is null, if the object comes over https.
    source(std::shared_ptr<rx_session> session, std::string url, ingest::fetch_options options, bool goes_on,
           std::shared_ptr<std::atomic<bool>> met_tls)
        : session_{std::move(session)},
          met_tls_{std::move(met_tls)},
          options_{std::move(options)},
          url_{std::move(url)},
          goes_on_{goes_on}
    {}
    source(source const&) = delete;
    source& operator=(source const&) = delete;
    ~source() = default;

    // Must be the first operation. Errors: those of the object, and errc::bad_safetensors.
    [[nodiscard]] asio::awaitable<void> async_header();
    // Instead of async_header(): reads all of a small file. Errors: as above; std::errc::file_too_large.
    [[nodiscard]] asio::awaitable<std::string> async_text(std::size_t at_most);
    // Compares the checksum once all of the file has arrived without a failure. On a GPU, completion means
    // "enqueued". Errors: errc::object_changed, if it is another file by now; errc::wrong_checksum.
    [[nodiscard]] asio::awaitable<void> async_fetch(std::span<ingest::placement const> placements);

    // Returns whether connections stay open after an operation. disconnect() closes them while none runs.
    [[nodiscard]] bool keeps_connections() const noexcept { return options_.keep_connections; }
    void disconnect() noexcept;

    // Returns the most connections that fetching this number of bytes uses.
    [[nodiscard]] unsigned flows_for(std::uint64_t bytes) const noexcept;

    // ---- from any thread, once the first operation is over ----

    [[nodiscard]] ingest::safetensors_header const& header() const noexcept { return header_; }
    [[nodiscard]] std::string const& url() const noexcept { return where_; }
    // For messages, without the secrets of a URL.
    [[nodiscard]] std::string name() const;
    [[nodiscard]] std::string const& etag() const noexcept { return etag_; }
    [[nodiscard]] std::string const& commit() const noexcept { return commit_; }
    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

    // May be called at any time. Counts all operations.
    [[nodiscard]] std::uint64_t bytes_placed() const;

  private:
    void rest() noexcept;
    [[nodiscard]] asio::awaitable<void> open(ingest::fetch_options const& options);
    [[nodiscard]] asio::awaitable<void> open_again();
    void check_same(bool is_same) const;

    std::shared_ptr<rx_session> session_;  // null: a file of this machine
    std::shared_ptr<std::atomic<bool>> met_tls_;
    ingest::fetch_options options_;
    std::string url_;
    bool goes_on_;
    ingest::safetensors_header header_;
    std::string where_;  // redirects have led to
    std::string etag_;
    std::string commit_;
    std::uint64_t size_ = 0;
    bool is_known_ = false;
    std::chrono::steady_clock::time_point const since_ = std::chrono::steady_clock::now();  // the deadline counts
    mutable std::mutex mutex_;  // guards that there is a file
    std::optional<ingest::object> file_;
    std::uint64_t placed_ = 0;
};

// ---- shared connections ----

class flow_budget;

// Keeps connections between its operations.
class connection_keeper {
  public:
    connection_keeper() = default;
    connection_keeper(connection_keeper const&) = delete;
    connection_keeper& operator=(connection_keeper const&) = delete;
    virtual ~connection_keeper() = default;
    // Closes the connections. Called from any thread while no operation of the file runs, and none can begin.
    virtual void disconnect() noexcept = 0;
};

// The kept connections of a file without a running operation.
struct kept_connections {
    void const* file;
    unsigned most;
    std::weak_ptr<connection_keeper> by;
};

// An operation's share. Destroyed when the operation is over or no longer wanted.
class turn {
  public:
    turn(turn const&) = delete;
    turn& operator=(turn const&) = delete;
    ~turn();

    // May be called once. Completes when the connections are free. Cancellation: terminal.
    [[nodiscard]] asio::awaitable<void> async_come();
    // Any thread may call it. The operation no longer goes behind those that cannot wait.
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

// Returns a function that hurries the turn as long as its operation lasts.
[[nodiscard]] std::function<void()> hurrying(std::shared_ptr<turn> const& mine);

// Thread safety: safe.
class flow_budget : public std::enable_shared_from_this<flow_budget> {
  public:
    explicit flow_budget(unsigned flows) noexcept : flows_{flows}, free_{flows} {}

    // `file`: an address unique to the file; its operations run in sequence. `flows`: the most connections of this
    // operation. Operations that `can_wait` go behind the others; otherwise the order is that of the calls. While a
    // file is busy, operations of other files run. No operation overtakes one that waits for more connections.
    // `keeper`: of a file that keeps its connections; the longest unused ones are closed first.
    [[nodiscard]] std::shared_ptr<turn> wait(asio::any_io_executor const& where, void const* file, unsigned flows,
                                             bool can_wait, std::weak_ptr<connection_keeper> keeper = {});

  private:
    friend class turn;
    using turns = std::list<turn*>;

    void leave(turn& one) noexcept;
    void hurry(turn& one) noexcept;
    // Precondition: the mutex is held.
    void admit() noexcept;
    [[nodiscard]] bool is_busy(void const* file) const noexcept;
    void take(turn const& one) noexcept;

    unsigned const flows_;
    std::mutex mutex_;  // guards the members below
    unsigned free_;
    turns waiting_;  // cannot wait for others
    turns later_;
    turns running_;
    std::list<kept_connections> kept_;  // of files that are not busy; with those that run `flows_` at most
};

}  // namespace gpurx::python
