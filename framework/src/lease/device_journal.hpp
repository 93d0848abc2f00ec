// SPDX-License-Identifier: Apache-2.0
//
// The journal of one device on disk, locked for as long as a device_journal lives. Settings, owners and queues change
// seldom: the whole is written anew. Rules come and go with connections: a line is added for each step, and who has
// added the last one need not read it all again.
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

// Makes it (0700) if it is absent. Throws system_error: EPERM if it is somebody else's, or others may write to it.
[[nodiscard]] unique_fd open_state_directory(std::string const& path);

// Why a journal is locked. Who gives back goes before all who take, so that what a session had is free as soon as it
// ends, however many others wait to begin.
enum class journal_use { take, give_back };

// The file. Held by one session at a time, over all processes, by a lock on a file beside it.
// In `directory`: ifindexI-netnsN.journal and .lock (an interface may be renamed, its index stays). The
// directory is made (0700) if it is absent; one that others may write to is refused, for they could make us
// change a NIC as they like.
class journal_file {
  public:
    // Waits for the lock; who takes stands back for who gives back, for half of `timeout` at most. Throws
    // system_error: ETIMEDOUT if it cannot be had in `timeout`; what opening and locking report.
    journal_file(std::string const& directory, device_key const& device,
                 std::chrono::milliseconds timeout = std::chrono::seconds{10}, journal_use use = journal_use::take);

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
    void wait_for_lock(std::chrono::milliseconds timeout, journal_use use, std::string const& lock_path) const;
    void replace(std::string_view text) const;

    std::string boot_id_;
    std::string name_;  // without its ending
    std::string path_;
    unique_fd directory_;
    unshared_fd lock_;
};

// The surroundings that a lease knows: where its journal is, who its owner is, and which processes live.
struct lease_environment {
    std::string state_directory;
    std::string boot_id;
    std::uint64_t netns = 0;
    owner_key self;
    // Whether the process of an owner lives; nothing: cannot be told from here.
    std::function<std::optional<bool>(owner_key const&)> alive;

    // How long to wait for another session that is changing the interface, and for a queue whose last user is just
    // being cleaned up by the kernel.
    std::chrono::milliseconds lock_timeout{std::chrono::seconds{10}};
    std::chrono::milliseconds busy_timeout{std::chrono::seconds{2}};
};

// A new session of this process. Throws system_error.
[[nodiscard]] lease_environment this_environment(std::string state_directory);

// Packets that are steered by some rule of the journal.
struct flow_match_hash {
    [[nodiscard]] std::size_t operator()(flow_match const& match) const noexcept;
};

// A journal as it was read or written last. Stays between two times that the journal is locked.
struct journal_cache {
    journal value;
    unique_fd file;           // of which it is; empty: there was none
    std::uint64_t size = 0;   // of the file
    std::uint64_t whole = 0;  // of that, what was written in one piece
    struct place {
        std::size_t owner = 0;
        std::size_t rule = 0;
    };
    std::unordered_map<flow_match, place, flow_match_hash> places;  // of rules
};

class device_journal {
  public:
    // Waits for the lock, and reads the journal unless `cache` still is what is there. One of another boot or device is
    // dropped: what it speaks of is gone. Throws system_error.
    device_journal(lease_environment const& environment, nic_device const& device, journal_cache& cache,
                   journal_use use = journal_use::take);
    device_journal(device_journal const&) = delete;
    device_journal& operator=(device_journal const&) = delete;

    [[nodiscard]] journal const* operator->() const noexcept { return &cache_.value; }
    [[nodiscard]] journal const& operator*() const noexcept { return cache_.value; }
    // To change anything but rules of owners that are there; then comes save().
    [[nodiscard]] journal& edit() noexcept { return cache_.value; }
    // Writes what must be there before the next change is made. Throws system_error.
    void save();

    // A rule of the journal for just these packets, and whose it is.
    struct found_rule {
        owner_key owner;
        journal_rule entry;
    };
    [[nodiscard]] std::optional<found_rule> find(flow_match const& match) const;
    // Adds a rule of an owner that is there, or changes its number. Written at once. Throws system_error,
    // and nothing has changed.
    void note(owner_key const& owner, journal_rule const& entry);
    // Takes a rule out, if it is there. The same.
    void forget(owner_key const& owner, flow_rule const& rule);

    // A sentence, if a journal was dropped.
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
