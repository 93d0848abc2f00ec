// SPDX-License-Identifier: Apache-2.0
//
// Sessions of several memories, and the rules that move flows from one to another.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <gpurx/gpurx.hpp>
#include <vector>

namespace gpurx::lab {

// On dms0, with transport devmem and `max_flows` for each memory. Notices are printed.
[[nodiscard]] rx_session open_parts(std::vector<device_memory> memories, unsigned max_flows);

// Rules for one connection of this port.
[[nodiscard]] std::size_t rules_of_flows(std::uint16_t port);

// Runs handlers until `ready`; false: it has not become so.
[[nodiscard]] bool run_until(boost::asio::io_context& context, std::function<bool()> const& ready);

// Nothing of the part is out, and nothing was lost or refused on the way back.
void check_empty(rx_session const& part);

}  // namespace gpurx::lab
