// SPDX-License-Identifier: Apache-2.0
//
// The journal of one interface: its owners, its changes and the original values. A value, and its text form; no I/O.
// The text has these lines, in this order:
//
//   gpurx-journal 1
//   boot BOOT-ID
//   device INTERFACE IFINDEX NETNS
//   change SETTING ORIGINAL... -> OURS...          any number, one a setting
//   owner PID START PIDNS SESSION                  any number; the lines below belong to it:
//   binding ID|io_uring|pending                    not there if an earlier version wrote it
//   queues QUEUE...                                at most once
//   rule ID|pending tcp4|tcp6 LOCAL|* PORT REMOTE|* PORT|* queue|context TARGET
//   context ID|pending QUEUE...
//   end
//   at OWNER ID|pending|gone tcp4|tcp6 …           any number: the new state of a rule of owner number OWNER
//                                                  (from 0); the rest as for rule. A truncated line was never
//                                                  written
//
// A binding is "pending" until it is made; a rule or context from before it is made until its number is known, and
// while it is being removed.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nic/flow_rule.hpp"
#include "nic/process.hpp"

namespace gpurx::detail {

// Settings that change for all sessions of an interface together, in the order of change. The values are numbers:
//   hardware_gro      0 off, 1 on
//   data_split        0 automatic, 1 off, 2 on, 3 automatic and reported as on
//   hds_threshold     bytes
//   ntuple_filters    0 off, 1 on
//   channels          RX, TX, combined
//   rss_table         a queue per hash value
//   rx_ring           frames of each RX queue
//   link              0 down, 1 up
// A session does not change the last two. gpurx-doctor does, in its own journal.
enum class setting : std::uint8_t {
    hardware_gro,
    data_split,
    hds_threshold,
    ntuple_filters,
    channels,
    rss_table,
    rx_ring,
    link
};
[[nodiscard]] std::string_view to_string(setting value) noexcept;
using setting_value = std::vector<std::uint32_t>;

struct setting_change {
    setting what = setting::data_split;
    setting_value original;
    setting_value ours;

    friend bool operator==(setting_change const&, setting_change const&) = default;
};

struct journal_rule {
    std::optional<std::uint32_t> id;  // nothing: pending
    flow_rule rule;

    friend bool operator==(journal_rule const&, journal_rule const&) = default;
};

struct journal_context {
    std::optional<std::uint32_t> id;  // nothing: pending
    std::vector<unsigned> queues;     // queues of the context, in this order

    friend bool operator==(journal_context const&, journal_context const&) = default;
};

// The memory bound to an owner's queues. It ends with the owner.
struct journal_binding {
    std::optional<std::uint32_t> id;  // nothing: of io_uring, or pending, that is, not bound yet
    bool io_uring = false;

    friend bool operator==(journal_binding const&, journal_binding const&) = default;
};

struct journal_owner {
    owner_key key;
    std::vector<unsigned> queues;
    std::vector<journal_rule> rules;
    std::vector<journal_context> contexts;
    std::optional<journal_binding> binding = {};  // nothing: an earlier version wrote it, which did not say

    friend bool operator==(journal_owner const&, journal_owner const&) = default;
};

// The device of a journal.
struct device_key {
    std::string boot_id;
    std::string interface;  // for people: it may be renamed
    std::uint32_t ifindex = 0;
    std::uint64_t netns = 0;  // the network namespace's cookie, never used twice in a boot

    [[nodiscard]] bool same_device(device_key const& other) const noexcept
    {
        return boot_id == other.boot_id && ifindex == other.ifindex && netns == other.netns;
    }
    friend bool operator==(device_key const&, device_key const&) = default;
};

struct journal {
    device_key device;
    std::vector<setting_change> changes;  // by setting
    std::vector<journal_owner> owners;

    [[nodiscard]] bool empty() const noexcept { return changes.empty() && owners.empty(); }
    [[nodiscard]] setting_change const* find(setting what) const noexcept;
    [[nodiscard]] journal_owner* find(owner_key const& key) noexcept;
    // Adds or replaces.
    void record(setting_change change);
    void forget(setting what);
    void forget(owner_key const& key);
    // Queues of all owners.
    [[nodiscard]] std::set<unsigned> leased_queues() const;

    friend bool operator==(journal const&, journal const&) = default;
};

// Omits the lines after the end: the value contains them.
[[nodiscard]] std::string serialise(journal const& from);

// A line after the end.
struct journal_record {
    std::size_t owner = 0;
    journal_rule entry;
    bool gone = false;
};
[[nodiscard]] std::string serialise(journal_record const& from);
// Returns false if there is no such owner, or no such rule to remove.
[[nodiscard]] bool apply(journal_record const& record, journal& to);

struct journal_damage {
    unsigned line = 0;  // from 1
    std::string what;

    friend bool operator==(journal_damage const&, journal_damage const&) = default;
};
// Returns the device of a journal, ignoring later lines; empty if the text is damaged.
[[nodiscard]] std::optional<device_key> parse_device(std::string_view text);
// Accepts only text that the functions above write. Any other text is damaged.
[[nodiscard]] std::variant<journal, journal_damage> parse_journal(std::string_view text);

}  // namespace gpurx::detail
