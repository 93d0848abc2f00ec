// SPDX-License-Identifier: Apache-2.0
#include "claim_environment.hpp"

#include <atomic>
#include <utility>

#include "process.hpp"

namespace gpurx::detail {

claim_environment this_environment(std::string state_directory)
{
    static std::atomic<std::uint64_t> sessions{0};
    claim_environment result;
    result.state_directory = std::move(state_directory);
    result.boot_id = boot_id();
    result.netns = network_namespace();
    result.self = this_process(++sessions);
    result.alive = is_alive;
    return result;
}

}  // namespace gpurx::detail
