// SPDX-License-Identifier: Apache-2.0
//
// async_receive as a state machine without I/O: the kernel is asked first and waited for only when it has nothing, or
// had nothing more the last time.
#pragma once

#include "stream_action.hpp"

namespace gpurx::detail {

// One per operation. resume() says what to do next; call it again with the result. After done it must not be called.
// done without an error: lend what is carried.
class receive_fsm {
  public:
    static constexpr char const* operation = "receive from";

    [[nodiscard]] stream_action resume(stream_facts const& now, stream_result const& last) noexcept;

  private:
    enum class point : std::uint8_t { start, received, waited };

    [[nodiscard]] stream_action attempt(stream_facts const& now) noexcept;
    [[nodiscard]] stream_action wait(stream_action::what kind) noexcept;

    point at_ = point::start;
};

}  // namespace gpurx::detail
