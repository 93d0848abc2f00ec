// SPDX-License-Identifier: Apache-2.0
//
// The journal of one device on disk, locked while a device_journal lives. Settings, owners and queues change rarely:
// each change rewrites the file. Rules change with connections: each step adds a line, and the writer of the last line
// need not read the file again.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/fork.hpp"
#include "base/syscalls.hpp"
#include "journal.hpp"
#include "nic/nic_device.hpp"
#include "nic/process.hpp"

namespace gpurx::detail {

// Makes the directory (0700) if it is absent. Throws system_error: EPERM if another user owns it, or if others may
// write to it.
[[nodiscard]] unique_fd open_state_directory(std::string const& path);

// Purpose of a lock. Sessions that return resources go before all that take some, so that the resources of an ended
// session are free at once, however many sessions wait to begin.
enum class journal_use { take, give_back };

// The file. One session of all processes holds it at a time, by a lock on a second file. The files are
// ifindexI-netnsN.journal and .lock in `directory`: an interface may be renamed, but its index stays. The function
// makes the directory (0700) if it is absent. It refuses a directory that others may write to, because they could
// control the changes of a NIC.
class journal_file {
  public:
    // Waits for the lock. A session that takes resources lets sessions that return some go first, for at most half of
    // `timeout`. Throws system_error: ETIMEDOUT if the lock is not free within `timeout`; the errors of opening and
    // locking.
    journal_file(std::string const& directory, device_key const& device,
                 std::chrono::milliseconds timeout = std::chrono::seconds{10}, journal_use use = journal_use::take);

    journal_file(journal_file const&) = delete;
    journal_file& operator=(journal_file const&) = delete;
    ~journal_file();

    // Returns the journal; empty if there is none. Of a journal of another boot it returns only the device, because a
    // loss of power may have damaged the rest. Throws system_error: errc::journal_invalid, and the errors of reading.
    [[nodiscard]] std::optional<journal> load() const;
    // Writes the journal atomically. An empty journal removes the file. Throws system_error.
    void store(journal const& value) const;

    // Opens the present file to append; empty if there is none. Throws system_error.
    [[nodiscard]] unique_fd open_to_append() const;
    // Returns whether `file` still is the journal and has `size` bytes.
    [[nodiscard]] bool is_now(unique_fd const& file, std::uint64_t size) const noexcept;

    [[nodiscard]] std::string const& path() const noexcept { return path_; }

  private:
    void wait_for_lock(std::chrono::milliseconds timeout, journal_use use, std::string const& lock_path) const;
    void replace(std::string_view text) const;

    std::string boot_id_;
    std::string name_;  // without its suffix
    std::string path_;
    unique_fd directory_;
    unshared_fd lock_;
};

// The environment of a lease: the place of its journal, its owner, and the live processes.
struct lease_environment {
    std::string state_directory;
    std::string boot_id;
    std::uint64_t netns = 0;
    owner_key self;
    // Returns whether the process of an owner lives; empty if this process cannot find out.
    std::function<std::optional<bool>(owner_key const&)> alive;

    // Most time to wait for another session that changes the interface, and for a queue whose last user the kernel is
    // still cleaning up.
    std::chrono::milliseconds lock_timeout{std::chrono::seconds{10}};
    std::chrono::milliseconds busy_timeout{std::chrono::seconds{2}};
};

// A new session of this process. Throws system_error.
[[nodiscard]] lease_environment this_environment(std::string state_directory);

// Packets that a rule of the journal steers.
struct flow_match_hash {
    [[nodiscard]] std::size_t operator()(flow_match const& match) const noexcept;
};

// The journal as last read or written. It is kept between two locks of the journal.
struct journal_cache {
    journal value;
    unique_fd file;           // the file of the content; empty: there was none
    std::uint64_t size = 0;   // of the file
    std::uint64_t whole = 0;  // of that, bytes written atomically
    struct place {
        std::size_t owner = 0;
        std::size_t rule = 0;
    };
    std::unordered_map<flow_match, place, flow_match_hash> places;  // of rules
};

class device_journal {
  public:
    // Waits for the lock, and reads the journal unless `cache` is still up to date. It drops a journal of another boot
    // or device, whose changes no longer exist. Throws system_error.
    device_journal(lease_environment const& environment, nic_device const& device, journal_cache& cache,
                   journal_use use = journal_use::take);
    device_journal(device_journal const&) = delete;
    device_journal& operator=(device_journal const&) = delete;

    [[nodiscard]] journal const* operator->() const noexcept { return &cache_.value; }
    [[nodiscard]] journal const& operator*() const noexcept { return cache_.value; }
    // For all changes except rules of existing owners. Call save() afterwards.
    [[nodiscard]] journal& edit() noexcept { return cache_.value; }
    // Writes the journal, which must be on disk before the next change is made. Throws system_error.
    void save();

    // Returns the journal's rule for exactly these packets, and its owner.
    struct found_rule {
        owner_key owner;
        journal_rule entry;
    };
    [[nodiscard]] std::optional<found_rule> find(flow_match const& match) const;
    // Adds a rule of an existing owner, or changes its number, and writes it at once. Throws system_error; nothing has
    // changed then.
    void note(owner_key const& owner, journal_rule const& entry);
    // Removes a rule if it exists; otherwise the same.
    void forget(owner_key const& owner, flow_rule const& rule);

    // Returns a sentence if it has dropped a journal.
    [[nodiscard]] std::optional<std::string> const& dropped() const noexcept { return dropped_; }

  private:
    void read(device_key const& key);
    void look_at_file();
    void find_places();
    [[nodiscard]] std::size_t number_of(owner_key const& owner) const noexcept;
    void add(journal_record const& record);

    journal_file file_;
    journal_cache& cache_;
    std::optional<std::string> dropped_;
};

}  // namespace gpurx::detail
