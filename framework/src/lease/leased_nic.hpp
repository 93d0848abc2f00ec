// SPDX-License-Identifier: Apache-2.0
//
// leased_nic: RX queues of another interface's NIC that were leased to this interface (netkit), for example in a
// container. A session only binds its memory to them. Header split, rings, RSS and rules belong to the NIC, and the
// program that leased the queues is responsible for them. queue_lease is different: it reserves queues of a NIC for a
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
    // open() calls it once before it binds memory. It throws system_error to refuse the ring. May be empty.
    std::function<void(nic_ring const&)> check_ring = {};
    // Longest wait for a queue after the death of its last user.
    std::chrono::milliseconds busy_timeout{std::chrono::seconds{2}};
};

// Returns whether the queues of an interface with this driver, except its first, are leased queues of a NIC. Only the
// driver tells: the kernel shows a lease on the NIC's side only.
[[nodiscard]] bool is_lessee(std::string_view driver);
// Returns the leased queues of such an interface. The first queue is its own, and delivers into no memory.
[[nodiscard]] std::vector<netdev::rx_queue> leased_queues(std::vector<netdev::rx_queue> const& all);

// Thread safety: safe. Only open() may block.
class leased_nic final : public session_nic {
  public:
    // Throws system_error with the reason. If the cause is on the NIC's side, it has advice for the NIC's owner.
    [[nodiscard]] static std::unique_ptr<leased_nic> open(leased_nic_config const& options, nic_device& device);

    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept override { return binding_->id().value_or(0); }
    [[nodiscard]] std::vector<unsigned> queues() const override { return queues_; }
    [[nodiscard]] std::size_t page_size() const noexcept override { return page_size_; }
    [[nodiscard]] bool has_array_tokens() const noexcept override { return array_tokens_; }
    [[nodiscard]] bool steers() const noexcept override { return false; }

    [[nodiscard]] std::unique_ptr<steering_rule> steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                            asio::ip::tcp::endpoint const& remote, error_code& code,
                                                            diagnostics& why) override;
    [[nodiscard]] std::unique_ptr<steering_rule> steer_port(int socket, asio::ip::tcp::endpoint const& local,
                                                            bool also_v4, error_code& code, diagnostics& why) override;
    // Returns the ring without its number of frames, because the ring is the NIC's.
    [[nodiscard]] nic_ring ring() const noexcept override { return ring_; }
    // Returns nothing: the kernel shows page pools only in the NIC's network namespace, and netkit counts no losses.
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
