// SPDX-License-Identifier: Apache-2.0
//
// async_read and async_read_some as a state machine without I/O: take what is carried from an earlier batch, then batch
// after batch, until the destination is full, or enough is there.
#pragma once

#include "stream_action.hpp"

namespace gpurx::detail {

// One per operation. resume() says what to do next; call it again with the result. After done it must not be called.
class read_fsm {
  public:
    static constexpr char const* operation = "read from";
    // Bytes after which other handlers get a turn, however fast the sender is.
    static constexpr std::size_t turn = 4 << 20;

    // How bytes get to the destination.
    enum class way : std::uint8_t {
        place,     // copied from where they were received
        in_place,  // the transport receives them there
    };

    // Places `size` bytes, or fewer if there are no more now and it is `enough`. `refused`: the error to complete with
    // instead, if any.
    read_fsm(std::size_t size, way to, error_code refused = {}) noexcept : read_fsm{size, to, refused, size} {}
    read_fsm(std::size_t size, way to, error_code refused, std::size_t enough) noexcept
        : refused_{refused}, size_{size}, enough_{enough}, way_{to}
    {}

    [[nodiscard]] stream_action resume(stream_facts const& now, stream_result const& last) noexcept;

  private:
    enum class point : std::uint8_t { start, placed, received, waited };

    [[nodiscard]] stream_action proceed(stream_facts const& now) noexcept;
    [[nodiscard]] stream_action after_receive(stream_facts const& now, stream_result const& last) noexcept;
    [[nodiscard]] stream_action after_wait(stream_facts const& now, stream_result const& last) noexcept;
    [[nodiscard]] stream_action go(point next, stream_action::what kind, std::size_t bytes = 0) noexcept;
    [[nodiscard]] stream_action done(error_code code) const noexcept;

    error_code refused_;
    std::size_t size_;
    std::size_t enough_;
    std::size_t placed_ = 0;
    std::size_t in_turn_ = 0;
    way way_;
    point at_ = point::start;
};

}  // namespace gpurx::detail
