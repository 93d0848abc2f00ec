// SPDX-License-Identifier: Apache-2.0
//
// The Asio shell around receive_fsm and read_fsm.
#pragma once

#include <memory>
#include <utility>

#include "async_op.hpp"
#include "receiver_state.hpp"

namespace gpurx::detail {

// The operations of a receiver.
template <class... Results>
class receiver_op : public async_op<receiver_state::claim, Results...> {
  public:
    receiver_op(std::shared_ptr<receiver_state> state, completion_site site,
                typename receiver_op::handler_type handler) noexcept
        : receiver_op::async_op{receiver_state::claim{std::move(state)}, std::move(site), std::move(handler)}
    {}

  protected:
    [[nodiscard]] receiver_state& state() const noexcept { return this->claim().state(); }
    [[nodiscard]] bool granted() const noexcept { return this->claim().granted(); }
};

// `Outcome` collects the second argument of the completion when the machine is done:
//     using type = …;
//     static type collect(receiver_state&, stream_action const& done) noexcept;
template <class Machine, class Outcome>
class stream_op : public receiver_op<error_code, typename Outcome::type> {
    using base = receiver_op<error_code, typename Outcome::type>;

  public:
    static void start(std::shared_ptr<receiver_state> state, Machine machine, landing const& destination,
                      completion_site site, typename base::handler_type handler)
    {
        stream_op{std::move(state), machine, destination, std::move(site), std::move(handler)}.begin();
    }

    // The end of a wait.
    void operator()(error_code code = {})
    {
        auto const next = advance({.code = code, .bytes = 0, .cancelled = this->end_wait()});
        if (next.kind == stream_action::what::done)
            this->complete(next.code, Outcome::collect(this->state(), next));
        else
            wait(next.kind);
    }

  private:
    stream_op(std::shared_ptr<receiver_state> state, Machine machine, landing const& destination, completion_site site,
              typename base::handler_type handler) noexcept
        : base{std::move(state), std::move(site), std::move(handler)}, machine_{machine}, destination_{destination}
    {}

    void begin()
    {
        if (!this->granted()) {
            this->state().failed(Machine::operation, errc::already_running);
            return this->complete_soon(errc::already_running, {});
        }
        auto const next = advance({});
        if (next.kind == stream_action::what::done)
            return this->complete_soon(next.code, Outcome::collect(this->state(), next));
        this->heed_cancellation(asio::enable_total_cancellation());
        wait(next.kind);
    }

    stream_action advance(stream_result const& last)
    {
        auto const next = this->state().run(machine_, last, destination_);
        if (next.code)
            this->state().failed(Machine::operation, next.code);
        return next;
    }

    void wait(stream_action::what kind)
    {
        auto& state = this->state();  // lives on in what *this is moved to
        state.start_wait(kind, std::move(*this));
    }

    Machine machine_;
    landing destination_;
};

}  // namespace gpurx::detail
