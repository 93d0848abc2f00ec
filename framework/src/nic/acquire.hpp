// SPDX-License-Identifier: Apache-2.0
//
// Setting a NIC up for one owner: the steps of queue_lease::open(). Each is recorded in the journal before it is done,
// so that undo.hpp can undo whatever was reached.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gpurx/session.hpp>

#include "device_journal.hpp"
#include "nic_device.hpp"

namespace gpurx::detail {

struct acquisition {
    std::vector<unsigned> queues;
    token_kind tokens = token_kind::xarray;  // never automatic
    std::unique_ptr<rx_binding> binding;
};

struct acquisition_request {
    unsigned rx_queues = 1;
    int dmabuf_fd = -1;
    std::uint32_t rx_page_size = 0;
    token_kind tokens = token_kind::automatic;
};

// Header split, ntuple filters, queues (and channels for them), RSS away from them, the memory bound. Throws
// system_error in the middle of it; what was done is in the journal then. `notices` gets what a user should know.
[[nodiscard]] acquisition acquire(device_journal& log, nic_device& nic, lease_environment const& environment,
                                  acquisition_request const& request, std::vector<std::string>& notices);

}  // namespace gpurx::detail
