// SPDX-License-Identifier: Apache-2.0
//
// What gpurxd and its clients' processes count, as values. No I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gpurx/error.hpp>

#include "policy.hpp"

namespace gpurx::gpurxd {

// What was refused.
enum class asked : std::uint8_t {
    connect,
    open,
    steer,
    unsteer,
    message,
    probe,  // an open without memory, which gets nothing: gpurx-doctor asks so whether the policy allows it
};
inline constexpr std::size_t asked_kinds = 6;

enum class refusal_reason : std::uint8_t {
    policy,      // the policy, a limit of it, or a port of somebody else's
    crowded,     // as many clients as there may be
    flows,       // as many rules as the client may have
    descriptor,  // none, or not of what it has to be
    elsewhere,   // of another network namespace
    order,       // asked before, or twice, or of what is not there
    protocol,    // no message of this version
    nic,         // what the kernel, the driver or the journal said
};
inline constexpr std::size_t refusal_reasons = 8;

[[nodiscard]] refusal_reason reason_of(asked what, error_code code) noexcept;

// A client that has queues.
struct client_figures {
    std::string interface;
    std::uint32_t uid = 0;
    limits most;
    std::uint64_t memory = 0;  // bytes bound
    std::uint32_t dmabuf = 0;  // the binding
    std::uint32_t page_size = 0;
    std::vector<unsigned> queues;
    std::uint64_t rules = 0;

    friend bool operator==(client_figures const&, client_figures const&) = default;
};

struct figures {
    std::uint64_t connections = 0;
    std::uint64_t rules_made = 0;
    std::uint64_t rules_taken_away = 0;
    std::array<std::array<std::uint64_t, refusal_reasons>, asked_kinds> refusals{};
    std::vector<client_figures> clients;

    friend bool operator==(figures const&, figures const&) = default;
};

}  // namespace gpurx::gpurxd
