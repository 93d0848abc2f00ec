// SPDX-License-Identifier: Apache-2.0
//
// The part of ethtool that netlink cannot do, or only in recent kernels: RSS tables and contexts, ntuple rules.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flow_rule.hpp"
#include "syscalls.hpp"

namespace gpurx::detail {

// The calls of nic_device with the same names.
class ethtool_ioctl {
  public:
    // An interface of this thread's network namespace, by its number: it may be renamed meanwhile.
    explicit ethtool_ioctl(unsigned index);

    // Nothing: the interface is gone.
    [[nodiscard]] std::optional<std::string> name() const;

    [[nodiscard]] std::vector<std::uint32_t> rss_table() const;
    void set_rss_table(std::span<std::uint32_t const> table) const;
    [[nodiscard]] std::uint32_t add_rss_context(std::span<std::uint32_t const> table) const;
    void remove_rss_context(std::uint32_t id) const;

    [[nodiscard]] std::vector<installed_rule> rules() const;
    [[nodiscard]] std::optional<installed_rule> rule(std::uint32_t id) const;
    // Lists all rules at most once in the life of this object, and once more where the table seems full.
    [[nodiscard]] std::uint32_t add_rule(flow_rule const& rule);
    void remove_rule(std::uint32_t id);

  private:
    // The places of all rules, and how many there can be (0: the driver does not say).
    struct rule_list {
        std::vector<std::uint32_t> used;
        std::uint32_t size = 0;
        bool driver_chooses = true;
    };
    [[nodiscard]] rule_list list() const;
    void look_for_places();
    // Nothing: all are taken.
    [[nodiscard]] std::optional<std::uint32_t> free_place();
    // 0, or errno.
    [[nodiscard]] int call(void* command) const;
    [[noreturn]] void refuse(int error, std::string operation, std::string const& object = {}) const;

    unsigned index_;
    unique_fd socket_;
    std::optional<rule_places> places_;  // as far as known; others may take some, and give some back
    bool driver_chooses_ = false;
};

}  // namespace gpurx::detail
