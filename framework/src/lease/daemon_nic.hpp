// SPDX-License-Identifier: Apache-2.0
//
// daemon_nic: queues that gpurxd leases for a process without the necessary rights. The process' bytes do not pass
// through the daemon. The daemon binds and steers. It undoes both when its connection ends, for any reason. gpurx-run
// does the same for the program that it starts, with a queue of io_uring.
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
#include "inherited_queue.hpp"
#include "session_nic.hpp"

namespace gpurx::detail {

class nic_device;  // nic/nic_device.hpp

struct daemon_nic_config {
    std::string interface;
    unsigned rx_queues = 1;
    std::uint32_t rx_page_size = 0;
    int dmabuf_fd = -1;  // used inside open() only
    std::string socket = "/run/gpurxd.sock";
    std::optional<inherited_queue> inherited = {};  // ask gpurx-run for this queue, and no daemon
    // Limit for a response: the daemon may wait for another session to open.
    std::chrono::milliseconds timeout{std::chrono::seconds{30}};
    // open() calls it once after the setup of the NIC. It throws system_error to refuse the ring; open() then undoes
    // the setup. May be empty.
    std::function<void(nic_ring const&)> check_ring = {};
    std::function<void(std::string_view)> notice;  // must not throw; may be empty
};

// Returns the path of the daemon's socket: GPURXD_SOCKET, or /run/gpurxd.sock. Empty if there is no socket, or if
// GPURXD_SOCKET is set and empty.
[[nodiscard]] std::string find_daemon();

// Thread safety: safe, except destruction. Calls block as a lease's do (queue_lease.hpp), and no longer than the
// timeout: ETIMEDOUT. sample() asks the kernel, not the daemon.
class daemon_nic final : public session_nic {
  public:
    // On an error, undoes everything, sets `code` and `why`, and returns null. If the daemon refuses, `why` has its
    // text.
    [[nodiscard]] static std::unique_ptr<daemon_nic> open(daemon_nic_config options, error_code& code,
                                                          diagnostics& why);
    // Disconnects, and waits until the daemon has restored the NIC. In a forked child it does neither.
    ~daemon_nic() override;

    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept override { return granted_.dmabuf_id; }
    [[nodiscard]] zcrx_queues zcrx() const noexcept override { return zcrx_; }
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
    // Throws system_error if the daemon refuses the request, or if it has closed the connection.
    void begin();
    [[nodiscard]] daemon_reply ask(daemon_request const& what, int descriptor = -1);
    [[nodiscard]] daemon_reply answer();
    [[nodiscard]] std::unique_ptr<steering_rule> steer(daemon_request const& what, int socket, error_code& code,
                                                       diagnostics& why);
    void unsteer(std::uint32_t number) noexcept;

    birthplace born_;
    daemon_nic_config options_;
    std::string peer_;  // for people
    std::optional<claimed_queue> claimed_;
    std::mutex mutex_;        // one request at a time
    daemon_channel channel_;  // guarded by it
    bool broken_ = false;     // the same; later messages would not match their requests

    opened_reply granted_;
    std::vector<std::shared_ptr<zcrx_queue>> zcrx_;  // one of gpurx-run; none: bound by bind-rx
    std::mutex look_mutex_;
    std::unique_ptr<nic_device> device_;  // guarded by it. Null: no access
    pool_sample before_;
};

}  // namespace gpurx::detail
