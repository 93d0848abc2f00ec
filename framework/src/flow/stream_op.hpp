// SPDX-License-Identifier: Apache-2.0
//
// The Asio shell around receive_fsm and read_fsm.
#pragma once

#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/query.hpp>
#include <memory>
#include <utility>

#include "base/async_op.hpp"
#include "receiver_state.hpp"

namespace gpurx::detail {

// The operations of type Op, a running_op. `Outcome` has the second argument of their completions:
//     using type = …;
//     static type collect(receiver_state&, stream_action const& done) noexcept;
template <class Op, class Outcome>
class stream_op {
    using handler_type = typename Op::handler_type;
    using result_type = typename Outcome::type;

  public:
    template <class Machine>
    static void start(std::shared_ptr<receiver_state>&& shared, Machine const& machine, landing const& destination,
                      completion_site&& site, handler_type&& handler)
    {
        receiver_state::claim claim{std::move(shared)};
        auto& state = claim.state();
        if (!claim.granted()) {
            state.failed(Machine::operation, errc::already_running);
            return complete_soon(
                step{std::move(handler), std::move(claim), {error_code{errc::already_running}, result_type{}}}, site);
        }
        auto& op = state.template begin<Op>(machine, destination, std::move(handler), std::move(site));
        auto const next = advance(state, op, {});
        if (next.kind == stream_action::what::done)
            return finish_soon(std::move(claim), op, next);
        heed_cancellation(op);
        keep_context_busy(state, op);
        wait(std::move(claim), next.kind);
    }

  private:
    using step = completion_step<handler_type, receiver_state::claim, error_code, result_type>;

    // The handler of a wait. It has the claim on the receiver: an operation whose wait never ends, because its
    // execution context is destroyed, goes with it. No executor is associated with it, so it runs on the receiver's
    // io_executor().
    class wait_end {
      public:
        using allocator_type = asio::associated_allocator_t<handler_type>;
        using cancellation_slot_type = asio::cancellation_slot;

        explicit wait_end(receiver_state::claim&& claim) noexcept : claim_{std::move(claim)} {}
        wait_end(wait_end&&) noexcept = default;
        wait_end& operator=(wait_end&&) = delete;
        ~wait_end()
        {
            if (!claim_)
                return;
            auto const handler = std::move(op().handler);  // what dies with it may look at the receiver
            claim_.state().end();
        }

        [[nodiscard]] allocator_type get_allocator() const noexcept
        {
            return asio::get_associated_allocator(op().handler);
        }
        [[nodiscard]] cancellation_slot_type get_cancellation_slot() const noexcept { return op().cancellation.slot(); }

        void operator()(error_code code = {})
        {
            auto& state = claim_.state();
            auto const& site = op().site;
            if (op().strand)
                return resume_on(*op().strand, code);
            auto const& own = site.executor;
            if (own ? own == state.io_executor() : state.has_no_strand())
                return resume(std::move(claim_), code);
            resume_on(site.or_else(state.get_executor()), code);
        }

      private:
        // `there`: a copy, as it may end before execute() returns.
        template <class Executor>
        void resume_on(Executor const there, error_code code)
        {
            execute_on(there, blocking::possibly,
                       [end = std::move(*this), code]() mutable { resume(std::move(end.claim_), code); });
        }
        [[nodiscard]] Op& op() const noexcept { return claim_.state().template running<Op>(); }

        receiver_state::claim claim_;
    };

    [[nodiscard]] static stream_action advance(receiver_state& state, Op& op, stream_result const& last)
    {
        auto const next = state.run(op.machine, last, op.destination);
        if (next.code)
            state.failed(op.machine.operation, next.code);
        return next;
    }

    static void wait(receiver_state::claim&& claim, stream_action::what kind)
    {
        auto& state = claim.state();  // lives on in the handler
        state.start_wait(kind, wait_end{std::move(claim)});
    }

    // The end of a wait, where the handler is to run.
    static void resume(receiver_state::claim&& claim, error_code code)
    {
        auto& state = claim.state();
        auto& op = state.template running<Op>();
        op.cancellation.slot().clear();
        auto const next = advance(state, op, {.code = code, .bytes = 0, .cancelled = op.cancellation.cancelled()});
        if (next.kind != stream_action::what::done)
            return wait(std::move(claim), next.kind);
        auto result = Outcome::collect(state, next);
        auto handler = std::move(op.handler);
        auto const is_there = op.site.is_known;
        state.end();
        if (!is_there)
            return asio::dispatch(asio::any_io_executor{state.get_executor()},
                                  step{std::move(handler), std::move(claim), {next.code, std::move(result)}});
        claim.release();
        std::move(handler)(next.code, std::move(result));
    }

    static void finish_soon(receiver_state::claim&& claim, Op& op, stream_action const& done)
    {
        auto& state = claim.state();
        step end{std::move(op.handler), std::move(claim), {done.code, Outcome::collect(state, done)}};
        auto site = std::move(op.site);
        auto const strand = std::move(op.strand);
        if (strand)
            site.strand = &*strand;
        state.end();
        complete_soon(std::move(end), site);
    }

    static void heed_cancellation(Op& op)
    {
        constexpr auto all = asio::enable_total_cancellation{};
        op.cancellation = asio::cancellation_state{asio::get_associated_cancellation_slot(op.handler), all, all};
    }

    static void keep_context_busy(receiver_state& state, Op& op)
    {
        constexpr auto context = asio::execution::context_as<asio::execution_context&>;
        auto const keep_busy = [&](asio::any_io_executor const& there) {
            if (there != state.get_executor() &&
                &asio::query(there, context) != &asio::query(state.io_executor(), context))
                op.work = asio::prefer(there, asio::execution::outstanding_work_t::tracked);
        };
        if (op.strand)
            keep_busy(op.strand->get_inner_executor());
        else if (op.site.executor)
            keep_busy(op.site.executor);
    }
};

}  // namespace gpurx::detail
