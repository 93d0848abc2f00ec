// SPDX-License-Identifier: Apache-2.0
//
// daemon_nic: queues that gpurxd leases for a process without the right to. The process's bytes do not pass through the
// daemon: it binds and steers, and undoes both when the connection to it ends, however it ends.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon_channel.hpp"
#include "daemon_protocol.hpp"
#include "session_nic.hpp"

namespace gpurx::detail {

class nic_device;  // nic/nic_device.hpp

struct daemon_nic_config {
    std::string interface;
    unsigned rx_queues = 1;
    std::uint32_t rx_page_size = 0;
    int dmabuf_fd = -1;  // used inside open() only
    std::string socket = "/run/gpurxd.sock";
    // For an answer: the daemon may wait for another session that is just being opened.
    std::chrono::milliseconds timeout{std::chrono::seconds{30}};
    // Called once, when the NIC is set up; refuses its ring by throwing system_error, which undoes it. May be empty.
    std::function<void(nic_ring const&)> check_ring = {};
    std::function<void(std::string_view)> notice;  // must not throw; may be empty
};

// The daemon's socket on this machine: GPURXD_SOCKET, or /run/gpurxd.sock. Empty: there is none, or GPURXD_SOCKET is
// set and empty.
[[nodiscard]] std::string find_daemon();

// Thread safety: safe, except destruction. Calls block as a lease's do (queue_lease.hpp), and no longer than the
// timeout: ETIMEDOUT. sample() asks the kernel, not the daemon.
class daemon_nic final : public session_nic {
  public:
    // On an error: null, everything undone, `code` and `why` set: the daemon's own words where it refuses.
    [[nodiscard]] static std::unique_ptr<daemon_nic> open(daemon_nic_config options, error_code& code,
                                                          diagnostics& why);
    // Hangs up, and waits until the daemon has put the NIC back. In a child that was forked: neither.
    ~daemon_nic() override;

    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept override { return granted_.dmabuf_id; }
    [[nodiscard]] std::vector<unsigned> queues() const override { return granted_.queues; }
    [[nodiscard]] std::size_t page_size() const noexcept override { return granted_.page_size; }
    [[nodiscard]] bool has_array_tokens() const noexcept override { return granted_.array_tokens; }
    [[nodiscard]] bool steers() const noexcept override { return granted_.steers; }
    [[nodiscard]] std::unique_ptr<steering_rule> steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                            asio::ip::tcp::endpoint const& remote, error_code& code,
                                                            diagnostics& why) override;
    [[nodiscard]] bool moves_flows() const noexcept override { return granted_.steers; }
    [[nodiscard]] std::unique_ptr<steering_rule> move_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                           asio::ip::tcp::endpoint const& remote, error_code& code,
                                                           diagnostics& why) override;
    [[nodiscard]] std::unique_ptr<steering_rule> steer_port(int socket, asio::ip::tcp::endpoint const& local,
                                                            bool also_v4, error_code& code, diagnostics& why) override;
    [[nodiscard]] nic_ring ring() const noexcept override { return granted_.ring; }
    [[nodiscard]] std::optional<pool_sample> sample() noexcept override;

  private:
    class rule;
    explicit daemon_nic(daemon_nic_config options);
    // Throws system_error: what the daemon refuses, and that it has gone.
    void begin();
    [[nodiscard]] daemon_reply ask(daemon_request const& what, int descriptor = -1);
    [[nodiscard]] daemon_reply answer();
    [[nodiscard]] std::unique_ptr<steering_rule> steer(daemon_request const& what, int socket, error_code& code,
                                                       diagnostics& why);
    void unsteer(std::uint32_t number) noexcept;

    birthplace born_;
    daemon_nic_config options_;
    std::mutex mutex_;        // one question at a time
    daemon_channel channel_;  // guarded by it
    bool broken_ = false;     // the same: what is said would not be the answer to what was asked

    opened_reply granted_;
    std::mutex look_mutex_;
    std::unique_ptr<nic_device> device_;  // guarded by it. Null: cannot be looked at
    pool_sample before_;
};

}  // namespace gpurx::detail
