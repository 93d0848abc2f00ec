// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <gpurx/memory.hpp>
#include <gpurx/session.hpp>

#include "observe.hpp"

namespace gpurx::doctor {

zcrx_trial try_zcrx(std::string const& interface, std::uint64_t memory, std::string const& state_directory)
{
    zcrx_trial trial;
    auto const note = [&trial](std::string_view sentence) { trial.notices.emplace_back(sentence); };
    try {
        // One flow, so that the memory is enough if the ring leaves any.
        rx_session const session{{.interface = interface,
                                  .transport = transport::zcrx,
                                  .max_flows = 1,
                                  .state_directory = state_directory,
                                  .notice = note},
                                 device_memory::on_host(memory)};
        trial.queues = session.queues();
    } catch (system_error const& error) {
        trial.failure = error.what();
    }
    return trial;
}

}  // namespace gpurx::doctor
