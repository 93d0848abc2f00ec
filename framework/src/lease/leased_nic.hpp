// SPDX-License-Identifier: Apache-2.0
//
// leased_nic: RX queues of a NIC elsewhere that were leased to this interface (netkit), as a container has them. A
// session binds its memory to them and does nothing else: header split, rings, RSS and rules are the NIC's, and the
// business of whoever leased the queues. Not to be confused with queue_lease, which sets queues of a NIC aside for a
// session.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nic/nic_device.hpp"
#include "session_nic.hpp"

namespace gpurx::detail {

struct leased_nic_config {
    unsigned rx_queues = 1;
    std::uint32_t rx_page_size = 0;  // bytes; 0: one system page
    int dmabuf_fd = -1;              // used inside open() only
    // Called once before anything is bound; refuses the ring by throwing system_error. May be empty.
    std::function<void(nic_ring const&)> check_ring = {};
    // For a queue whose last user has just died.
    std::chrono::milliseconds busy_timeout{std::chrono::seconds{2}};
};

// Whether the queues of an interface with this driver, but its first, are queues of a NIC that were leased to it. The
// driver is all there is to tell by: the kernel shows a lease on the NIC's side alone.
[[nodiscard]] bool is_lessee(std::string_view driver);
// Of the queues of such an interface those that are leased: the first is its own, and delivers into no memory.
[[nodiscard]] std::vector<netdev::rx_queue> leased_queues(std::vector<netdev::rx_queue> const& all);

// Thread-safe. No call but open() does anything that could block.
class leased_nic final : public session_nic {
  public:
    // Throws system_error: what is wrong, and where that is on the other side of the lease, what its owner has to do.
    [[nodiscard]] static std::unique_ptr<leased_nic> open(leased_nic_config const& options, nic_device& device);

    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept override { return binding_->id(); }
    [[nodiscard]] std::vector<unsigned> queues() const override { return queues_; }
    [[nodiscard]] std::size_t page_size() const noexcept override { return page_size_; }
    [[nodiscard]] bool has_array_tokens() const noexcept override { return array_tokens_; }
    [[nodiscard]] bool steers() const noexcept override { return false; }

    [[nodiscard]] std::unique_ptr<steering_rule> steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                            asio::ip::tcp::endpoint const& remote, error_code& code,
                                                            diagnostics& why) override;
    [[nodiscard]] std::unique_ptr<steering_rule> steer_port(int socket, asio::ip::tcp::endpoint const& local,
                                                            bool also_v4, error_code& code, diagnostics& why) override;
    // Without the number of frames: the ring is the NIC's.
    [[nodiscard]] nic_ring ring() const noexcept override { return ring_; }
    // Empty: the kernel shows page pools in the network namespace of the NIC alone, and netkit counts no losses.
    [[nodiscard]] std::optional<pool_sample> sample() noexcept override { return std::nullopt; }

  private:
    leased_nic() = default;

    std::vector<unsigned> queues_;
    std::size_t page_size_ = 0;
    bool array_tokens_ = false;
    nic_ring ring_;
    std::unique_ptr<rx_binding> binding_;
};

}  // namespace gpurx::detail
