// SPDX-License-Identifier: Apache-2.0
//
// A session on a NIC that a test speaks for.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <gpurx/memory.hpp>
#include <gpurx/session.hpp>

#include "base/byte_size.hpp"
#include "fake_nic.hpp"
#include "session/session_state.hpp"

namespace gpurx::test {

inline std::shared_ptr<detail::session_state> devmem_session(rx_session_options options, std::shared_ptr<nic_log> log,
                                                             std::uint32_t id = 77)
{
    auto const memory = device_memory::on_host(8 * detail::mebibyte);
    return detail::session_state::create(std::move(options), detail::session_access::state(memory),
                                         std::make_unique<fake_nic>(std::move(log), id), "explained");
}

}  // namespace gpurx::test
