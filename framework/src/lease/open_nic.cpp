// SPDX-License-Identifier: Apache-2.0
#include "open_nic.hpp"

#include <utility>

#include "leased_nic.hpp"
#include "nic/kernel_nic.hpp"

namespace gpurx::detail {

std::unique_ptr<session_nic> open_nic(queue_lease_config options, error_code& code, diagnostics& why)
{
    code.clear();
    why.clear();
    try {
        kernel_nic device{options.interface};
        if (is_lessee(device.driver()))
            return leased_nic::open({.rx_queues = options.rx_queues,
                                     .rx_page_size = options.rx_page_size,
                                     .dmabuf_fd = options.dmabuf_fd,
                                     .check_ring = options.check_ring},
                                    device);
    } catch (system_error const& error) {
        code = error.code();
        why = error.why();
        return nullptr;
    }
    return queue_lease::open(std::move(options), code, why);
}

}  // namespace gpurx::detail
