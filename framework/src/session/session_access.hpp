// SPDX-License-Identifier: Apache-2.0
//
// The one door between the public handles and the state that they share, for the library itself and its tests.
#pragma once

#include <memory>
#include <utility>

#include <gpurx/memory.hpp>
#include <gpurx/session.hpp>

namespace gpurx::detail {

struct session_access {
    [[nodiscard]] static rx_session handle(std::shared_ptr<session_state> state) noexcept
    {
        return rx_session{std::move(state)};
    }
    [[nodiscard]] static std::shared_ptr<session_state> const& state(rx_session const& of) noexcept
    {
        return of.state_;
    }
    [[nodiscard]] static device_memory handle(std::shared_ptr<memory_state> state) noexcept
    {
        return device_memory{std::move(state)};
    }
    [[nodiscard]] static std::shared_ptr<memory_state> state(device_memory of) noexcept { return std::move(of.state_); }
};

}  // namespace gpurx::detail
