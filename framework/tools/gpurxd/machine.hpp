// SPDX-License-Identifier: Apache-2.0
//
// A client's surroundings on this machine: its process, the policy, the NIC, and what a descriptor is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client.hpp"
#include "figure_table.hpp"
#include "policy.hpp"

namespace gpurx::gpurxd {

struct places {
    std::string policy = "/etc/gpurx/gpurxd.conf";
    std::string state_directory = "/run/gpurx";
};

// Throws system_error: what reading reports; EACCES if others than its owner, who is root or this user, may write it;
// EINVAL with the line that is wrong.
[[nodiscard]] policy read_policy(std::string const& path);

// The process at the other end of a Unix socket, as it was when it connected. Throws system_error.
[[nodiscard]] caller caller_of(int connection);

class machine final : public surroundings {
  public:
    machine(places where, caller from);

    [[nodiscard]] limits admit(std::string_view interface) override;
    [[nodiscard]] std::uint64_t dmabuf_size(int descriptor) override;
    [[nodiscard]] std::unique_ptr<detail::session_nic> lease(
        detail::open_request const& what, int dmabuf, std::function<void(std::string_view)> const& notice) override;
    void check_flow(int descriptor, detail::steer_flow_request const& what) override;
    void check_listener(int descriptor, detail::steer_port_request const& what) override;
    [[nodiscard]] std::set<std::uint16_t> shared_of(std::set<std::uint16_t> const& ports) override;
    void has_opened(client_figures who) override;
    void has_rules(std::uint64_t now, std::uint64_t made, std::uint64_t taken_away) noexcept override;
    void has_refused(asked what, error_code code) noexcept override;

  private:
    // One of so many on this interface; held by a lock, which ends with the process.
    void take_place(std::string_view interface, unsigned index, unsigned clients);

    places where_;
    caller from_;
    detail::unique_fd place_;
    std::optional<figure_table> counts_;  // empty: it cannot be counted
};

}  // namespace gpurx::gpurxd
