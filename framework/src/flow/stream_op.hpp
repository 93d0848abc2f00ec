// SPDX-License-Identifier: Apache-2.0
//
// The Asio shell around receive_fsm and read_fsm: a composed operation for async_compose.
#pragma once

#include <boost/asio/append.hpp>
#include <boost/asio/associated_immediate_executor.hpp>
#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/dispatch.hpp>
#include <memory>
#include <utility>

#include "receiver_state.hpp"

namespace gpurx::detail {

// Leaves the initiating function before completing, as the handler's immediate executor says.
template <class Self>
void complete_soon(Self& self)
{
    auto const executor = asio::get_associated_immediate_executor(self, self.get_io_executor());
    asio::dispatch(executor, std::move(self));
}

// `Outcome` collects the second argument of the completion when the machine is done:
//     using type = …;
//     static type collect(receiver_state&, stream_action const& done) noexcept;
template <class Machine, class Outcome>
class stream_op {
  public:
    stream_op(std::shared_ptr<receiver_state> state, Machine machine, std::byte* destination) noexcept
        : claim_{std::move(state)}, machine_{machine}, destination_{destination}
    {}

    template <class Self>
    void operator()(Self& self, error_code code = {})
    {
        if (finished_)
            return complete(self);
        if (!started_)
            self.reset_cancellation_state(asio::enable_total_cancellation());
        auto const next = advance({.code = code, .bytes = 0, .cancelled = self.cancelled()});
        if (next.kind != stream_action::what::done) {
            started_ = true;
            return claim_.state().start_wait(next.kind, std::move(self));
        }
        finished_ = true;
        code_ = next.code;
        return started_ ? complete(self) : complete_soon(self);
    }

  private:
    stream_action advance(stream_result const& last)
    {
        if (!claim_.granted())
            return {.kind = stream_action::what::done, .bytes = 0, .code = errc::already_running};
        auto next = claim_.state().run(machine_, last, destination_);
        if (next.kind == stream_action::what::done)
            outcome_ = Outcome::collect(claim_.state(), next);
        return next;
    }

    template <class Self>
    void complete(Self& self)
    {
        auto outcome = std::move(outcome_);
        // Before the handler runs: it may start the next operation.
        claim_.release();
        self.complete(code_, std::move(outcome));
    }

    receiver_state::claim claim_;
    Machine machine_;
    std::byte* destination_;
    bool started_ = false;
    bool finished_ = false;
    error_code code_;
    typename Outcome::type outcome_{};
};

}  // namespace gpurx::detail
