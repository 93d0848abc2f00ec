// SPDX-License-Identifier: Apache-2.0
//
// async_receive, async_read and async_read_some: the operations that take bytes off a connection.
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/query.hpp>
#include <memory>
#include <utility>

#include <gpurx/detail/receiver_base.hpp>
#include <gpurx/read.hpp>

#include "base/async_op.hpp"
#include "receiver_state.hpp"
#include "stream_fsm.hpp"

namespace gpurx::detail {

namespace {

// The Asio shell around receive_fsm and read_fsm: the operations of type Op, a running_op.
template <class Op>
class stream_op {
    using machine_type = typename Op::machine_type;
    using handler_type = typename Op::handler_type;
    using result_type = typename Op::result_type;

  public:
    static void start(std::shared_ptr<receiver_state>&& shared, machine_type const& machine, landing const& destination,
                      completion_site&& site, handler_type&& handler)
    {
        receiver_state::claim claim{std::move(shared)};
        auto& state = claim.state();
        if (!claim.granted()) {
            state.failed(machine_type::operation, errc::already_running);
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

    // The second argument of the completion.
    [[nodiscard]] static result_type result_of(receiver_state& state, stream_action const& done) noexcept
    {
        if constexpr (machine_type::lends)
            return state.lend(done);
        else
            return done.bytes;
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
        auto result = result_of(state, next);
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
        step end{std::move(op.handler), std::move(claim), {done.code, result_of(state, done)}};
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

}  // namespace

void start_receive(std::shared_ptr<receiver_state> state, std::size_t at_least, std::size_t at_most,
                   completion_site site, receive_handler handler)
{
    if (at_most != unbounded)
        state->bound_read_ahead();
    // Beyond any limit: a wait for pages that there are not would have no end.
    if (at_least > 1 && at_least > state->memory_size())
        at_least = unbounded;
    stream_op<receive_op>::start(std::move(state), receive_fsm{at_least, at_most}, landing{}, std::move(site),
                                 std::move(handler));
}

void start_read(std::shared_ptr<receiver_state> state, destinations_ref to, read_until enough, completion_site site,
                read_handler handler)
{
    landing first;
    std::size_t size = 0;
    error_code refused;
    if (!state->is_busy())
        first = state->land_on(to, size, refused);
    auto const way = state->writes_in_place() ? read_fsm::way::in_place : read_fsm::way::place;
    read_fsm const machine{size, way, refused, enough == read_until::full ? size : 1};
    stream_op<read_op>::start(std::move(state), machine, first, std::move(site), std::move(handler));
}

}  // namespace gpurx::detail
