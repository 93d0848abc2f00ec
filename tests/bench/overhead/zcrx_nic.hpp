// SPDX-License-Identifier: Apache-2.0
//
// A NIC prepared for the C loop of io_uring, which has no session that does it: headers are split, and one port is
// steered to a queue that other flows stay away from.
#pragma once

#include <cstdint>
#include <vector>

#include "../rfc/drain.h"
#include "../tokens/bound_nic.hpp"

namespace bench {

// Its destruction takes the rule and the registration away, so that sessions find the NIC as it was. Throws
// std::system_error, gpurx::system_error.
class zcrx_nic {
  public:
    zcrx_nic(std::uint16_t port, std::size_t bytes);
    zcrx_nic(zcrx_nic const&) = delete;
    zcrx_nic& operator=(zcrx_nic const&) = delete;
    ~zcrx_nic();

    [[nodiscard]] zcrx_loop& ring() noexcept { return ring_; }

  private:
    gpurx::detail::kernel_nic nic_{interface};
    dmabuf memory_;
    std::vector<std::uint32_t> rss_;
    std::uint32_t rule_;
    zcrx_loop ring_;
};

}  // namespace bench
