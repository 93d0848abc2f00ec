// SPDX-License-Identifier: Apache-2.0
//
// Judges facts: each finding names an obstacle to transport devmem, or its absence, the evidence, and the command that
// removes it. No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "facts.hpp"

namespace gpurx::doctor {

enum class severity : std::uint8_t {
    fine,      // as it should be
    note,      // worth knowing: a session deals with it, or it matters to some only
    degraded,  // works, but worse than it could, or at somebody else's expense
    blocking,  // transport devmem cannot work so
};
[[nodiscard]] std::string_view to_string(severity value) noexcept;

// The whole of an interface, or of the machine.
enum class verdict : std::uint8_t { ready, degraded, not_possible };
[[nodiscard]] std::string_view to_string(verdict value) noexcept;

// The action of --fix for a finding.
struct fix_action {
    enum class kind : std::uint8_t {
        recover,  // undo what dead sessions left
        link_up,
        rx_ring,  // `value` frames
    };
    kind what = kind::recover;
    std::uint32_t value = 0;

    friend bool operator==(fix_action const&, fix_action const&) = default;
};

struct finding {
    severity level = severity::fine;
    std::string topic;          // the same word for the same question, whatever the answer: "header-split"
    std::string what;           // a sentence without its full stop
    std::string evidence = {};  // what was seen
    std::string command = {};   // that mends it, to be typed as it is; empty: none does, or nothing is to be mended
    std::optional<fix_action> fix = {};     // nothing: --fix leaves it to whoever reads this
    std::vector<std::string> changes = {};  // that the command makes, where it does not name them itself

    friend bool operator==(finding const&, finding const&) = default;
};

struct diagnosis {
    verdict outcome = verdict::ready;
    std::vector<finding> findings;
};

// The most severe of them decides.
[[nodiscard]] verdict judge(std::vector<finding> const& findings) noexcept;

// Of the kernel, host memory and this process: the same for all interfaces. With a GPU, host memory matters less.
[[nodiscard]] std::vector<finding> check_machine(machine_facts const& machine, bool with_gpu,
                                                 requirements const& wanted);
[[nodiscard]] std::vector<finding> check_gpu(gpu_facts const& gpu, requirements const& wanted);
// Of one interface, between which and the GPU, if any, the bytes go.
[[nodiscard]] std::vector<finding> check_interface(interface_facts const& nic, machine_facts const& machine,
                                                   gpu_facts const* gpu, requirements const& wanted);

// All of the above.
[[nodiscard]] diagnosis diagnose(facts const& seen, interface_facts const& interface);
// Whether these are of a NIC that can have transport devmem once the rest is fixed.
[[nodiscard]] bool supports_devmem(std::vector<finding> const& findings) noexcept;
// The interface on which it goes best; null: there is none. Of equal ones the first.
[[nodiscard]] interface_facts const* best_interface(facts const& seen);

}  // namespace gpurx::doctor
