// SPDX-License-Identifier: Apache-2.0
//
// An AF_PACKET socket with a ring (TPACKET_V3) that this process and the kernel share. The thin layer over the system
// calls; what the packets mean is for others.
#pragma once

#include <linux/filter.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/syscalls.hpp"
#include "frame.hpp"

namespace gpurx::doctor::tap {

struct tapped_packet {
    std::span<std::byte const> captured;  // lasts as long as the call that it was given to
    std::uint32_t length = 0;             // of the packet
    moment when{};
    bool outgoing = false;
};

struct ring_counts {
    std::uint64_t packets = 0;  // that the filter let through, those that were dropped included
    std::uint64_t dropped = 0;  // for which there was no room
};

class packet_ring {
  public:
    // Sees packets of the interface, both ways, from now on. Costs a grace period of RCU (in PACKET_RX_RING), and none
    // in bind(): the socket has no protocol before, so that there is no hook to be moved. Nobody else waits: the NIC is
    // not touched. Throws system_error.
    packet_ring(std::string const& interface, unsigned index, std::size_t size, std::span<sock_filter const> program);
    packet_ring(packet_ring const&) = delete;
    packet_ring& operator=(packet_ring const&) = delete;
    ~packet_ring();

    // Readable when there are packets to be taken, at the latest this long after they came.
    static constexpr std::chrono::milliseconds patience{100};
    [[nodiscard]] int fd() const noexcept { return socket_.get(); }

    // Gives `taker` what there is.
    void take(std::function<void(tapped_packet const&)> const& taker);
    // In the place of the one before, without a gap. Throws system_error.
    void set_filter(std::span<sock_filter const> program);
    // The interface went down, or away; 0: it did not.
    [[nodiscard]] int take_error() noexcept;
    // Since the beginning.
    [[nodiscard]] ring_counts counts() noexcept;

  private:
    void map(std::size_t size);

    std::string interface_;
    detail::unique_fd socket_;
    std::byte* blocks_ = nullptr;
    std::size_t count_ = 0;
    std::size_t next_ = 0;
    ring_counts counts_;
};

}  // namespace gpurx::doctor::tap
