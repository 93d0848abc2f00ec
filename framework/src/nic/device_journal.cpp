// SPDX-License-Identifier: Apache-2.0
#include "device_journal.hpp"

#include <fmt/format.h>

#include <utility>

namespace gpurx::detail {

namespace {

device_key key_of(claim_environment const& environment, nic_device const& device)
{
    return {environment.boot_id, device.name(), device.index(), environment.netns};
}

}  // namespace

device_journal::device_journal(claim_environment const& environment, nic_device const& device)
    : file_{environment.state_directory, key_of(environment, device), environment.lock_patience}
{
    device_key key = key_of(environment, device);
    if (auto found = file_.load()) {
        if (found->device.same_device(key))
            value_ = *std::move(found);
        else
            dropped_ = fmt::format("{}: dropped a journal of another boot or device ({})", key.interface, file_.path());
    }
    value_.device = std::move(key);
}

}  // namespace gpurx::detail
