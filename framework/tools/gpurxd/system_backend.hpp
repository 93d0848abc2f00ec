// SPDX-License-Identifier: Apache-2.0
//
// The backend of a client on this machine: it asks the policy, the kernel and the NIC, and logs and counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client.hpp"
#include "log.hpp"
#include "policy_file.hpp"
#include "shared_counters.hpp"

namespace gpurx::gpurxd {

// Bytes of a dmabuf that may be written to. Refuses, by system_error, everything else.
[[nodiscard]] std::uint64_t size_of_dmabuf(int descriptor);
// Drops every capability but CAP_NET_ADMIN, for this process and its children. Throws system_error if the process lacks
// CAP_NET_ADMIN.
void keep_only_net_admin(char const* advice);

class system_backend final : public client_backend {
  public:
    // `connection`: to the client, to see whether it still waits.
    system_backend(daemon_paths paths, caller from, int connection);
    // Says what the client had, if it had something.
    ~system_backend() override;

    [[nodiscard]] limits admit(std::string_view interface) override;
    [[nodiscard]] std::string policy_path() const override { return paths_.policy; }
    [[nodiscard]] std::uint64_t dmabuf_size(int descriptor) override { return size_of_dmabuf(descriptor); }
    [[nodiscard]] std::unique_ptr<detail::session_nic> lease(
        detail::open_request const& what, int dmabuf, std::function<void(std::string_view)> const& notice) override;
    void check_flow(int descriptor, detail::steer_flow_request const& what) override;
    [[nodiscard]] std::vector<asio::ip::tcp::endpoint> check_listener(int descriptor,
                                                                      detail::steer_port_request const& what) override;
    [[nodiscard]] std::set<asio::ip::tcp::endpoint> find_lost(std::set<asio::ip::tcp::endpoint> const& ends) override;
    void on_opened(client_metrics who) override;
    void on_rules_changed(std::uint64_t now, std::uint64_t made, std::uint64_t taken_away) noexcept override;
    void on_refused(request_kind what, error_code code, diagnostics const& why) noexcept override;

  private:
    // One of so many on this interface; held by a lock, which ends with the process.
    void take_session_slot(std::string_view interface, unsigned index, unsigned clients);
    // Until the user may open a session again.
    void wait_for_open_rate();

    daemon_paths paths_;
    caller from_;
    std::string caller_name_;  // for people
    int connection_;
    limits most_;
    log_limit refusals_;
    std::optional<std::chrono::steady_clock::time_point> opened_;
    std::string interface_;  // that the client may use; empty: not yet
    detail::unique_fd slot_;
    std::optional<shared_counters> counts_;  // empty: it cannot be counted
};

}  // namespace gpurx::gpurxd
