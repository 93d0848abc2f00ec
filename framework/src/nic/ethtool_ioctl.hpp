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
#include "unique_fd.hpp"

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
    [[nodiscard]] std::uint32_t add_rule(flow_rule const& rule) const;
    void remove_rule(std::uint32_t id) const;

  private:
    // The places of all rules, and how many there can be (0: the driver does not say).
    struct rule_places {
        std::vector<std::uint32_t> used;
        std::uint32_t size = 0;
        bool driver_chooses = true;
    };
    [[nodiscard]] rule_places places() const;
    // 0, or errno.
    [[nodiscard]] int call(void* command) const;
    [[noreturn]] void refuse(int error, std::string operation, std::string const& object = {}) const;

    unsigned index_;
    unique_fd socket_;
};

}  // namespace gpurx::detail
