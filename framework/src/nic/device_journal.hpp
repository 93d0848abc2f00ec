// SPDX-License-Identifier: Apache-2.0
//
// The journal of one device, locked for as long as a device_journal lives. Settings, owners and queues change seldom:
// the whole is written anew. Rules come and go with connections: a line is added for each step, and who has added the
// last one need not read it all again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "journal.hpp"
#include "journal_file.hpp"
#include "nic_device.hpp"
#include "process.hpp"
#include "syscalls.hpp"

namespace gpurx::detail {

// Packets that are steered by some rule of the journal.
struct flow_match_hash {
    [[nodiscard]] std::size_t operator()(flow_match const& match) const noexcept;
};

// A journal as it was read or written last. Lives on between two times that it is locked.
struct known_journal {
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
    // Waits for the lock, and reads the journal unless `known` still is what is there. One of another boot or device is
    // dropped: what it speaks of is gone. Throws system_error.
    device_journal(lease_environment const& environment, nic_device const& device, known_journal& known);
    device_journal(device_journal const&) = delete;
    device_journal& operator=(device_journal const&) = delete;

    [[nodiscard]] journal const* operator->() const noexcept { return &known_.value; }
    [[nodiscard]] journal const& operator*() const noexcept { return known_.value; }
    // To change anything but rules of owners that are there; then comes save().
    [[nodiscard]] journal& edit() noexcept { return known_.value; }
    // What must be written before the next change is made. Throws system_error.
    void save();

    // A rule of the journal for just these packets, and whose it is.
    struct found_rule {
        owner_key owner;
        journal_rule entry;
    };
    [[nodiscard]] std::optional<found_rule> find(flow_match const& match) const;
    // Adds a rule of an owner that is there, or changes its number. Written at once. Throws system_error, and nothing
    // has changed.
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
    known_journal& known_;
    std::optional<std::string> dropped_;
};

}  // namespace gpurx::detail
