// SPDX-License-Identifier: Apache-2.0
//
// Session: memory that a NIC writes into, and the NIC's resources for it.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <gpurx/session.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace gpurx::python {

namespace nb = nanobind;

class session {
  public:
    session(int gpu, std::size_t size, rx_session_options options);
    session(session const&) = delete;
    session& operator=(session const&) = delete;
    ~session();

    // Throws gpurx::system_error once it is closed.
    [[nodiscard]] std::shared_ptr<rx_session> const& get() const;
    [[nodiscard]] bool closed() const noexcept { return session_ == nullptr; }
    // Restores the NIC once the users of the session are done.
    void close() noexcept { session_.reset(); }
    [[nodiscard]] std::vector<std::string> notices() const;
    // Users of the session set it after a load by https; explain() reports that.
    [[nodiscard]] std::shared_ptr<std::atomic<bool>> const& met_tls() const noexcept { return met_tls_; }
    [[nodiscard]] std::string explain() const;
    // Adds a line, about this process, to explain() of all sessions.
    static void note(std::string text);

  private:
    struct notes {
        std::mutex mutex;
        std::vector<std::string> all;
    };
    [[nodiscard]] static notes& process_notes();
    std::shared_ptr<notes> notes_ = std::make_shared<notes>();
    std::shared_ptr<std::atomic<bool>> met_tls_ = std::make_shared<std::atomic<bool>>(false);
    std::shared_ptr<rx_session> session_;
};

// Returns the session to receive through; null if there is none. Throws gpurx::system_error if it is closed, or in
// another process.
[[nodiscard]] std::shared_ptr<rx_session> session_in(session const* one);

// Returns session::met_tls(); null if there is no session.
[[nodiscard]] std::shared_ptr<std::atomic<bool>> tls_note_of(session const* one);

// For the end of the process: closes the sessions that the program still has, because the interpreter does not destroy
// all objects.
void close_sessions() noexcept;

}  // namespace gpurx::python
