// SPDX-License-Identifier: Apache-2.0
//
// The journal's file. Held by one session at a time, over all processes, by a lock on a file beside it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "fork.hpp"
#include "journal.hpp"

namespace gpurx::detail {

// In `directory`: ifindexI-netnsN.journal and .lock (an interface may be renamed, its index stays). The directory is
// made (0700) if it is absent; one that others may write to is refused, for they could make us change a NIC as they
// like.
class journal_file {
  public:
    // Waits for the lock. Throws system_error: ETIMEDOUT if somebody holds it longer than `patience`; what opening and
    // locking report.
    journal_file(std::string const& directory, device_key const& device,
                 std::chrono::milliseconds patience = std::chrono::seconds{10});

    journal_file(journal_file const&) = delete;
    journal_file& operator=(journal_file const&) = delete;
    ~journal_file();

    // Nothing: there is none. Of one of another boot the device only: a loss of power may have damaged the rest. Throws
    // system_error: errc::journal_invalid, and what reading reports.
    [[nodiscard]] std::optional<journal> load() const;
    // In one piece or not at all; an empty journal is no file. Throws system_error.
    void store(journal const& value) const;

    // The file as it is now, to add to; empty: there is none. Throws system_error.
    [[nodiscard]] unique_fd open_to_append() const;
    // Whether `file` still is the journal, and `size` bytes long.
    [[nodiscard]] bool is_now(unique_fd const& file, std::uint64_t size) const noexcept;

    [[nodiscard]] std::string const& path() const noexcept { return path_; }

  private:
    void replace(std::string_view text) const;

    std::string boot_id_;
    std::string name_;  // without its ending
    std::string path_;
    unique_fd directory_;
    unshared_fd lock_;
};

}  // namespace gpurx::detail
