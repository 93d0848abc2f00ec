// SPDX-License-Identifier: Apache-2.0
//
// Common parts of operations: a type-erased handler, the claim on the operation's object, the cancellation of a wait,
// and the two ways to complete. The code does not use async_compose: that would send an immediate completion through
// the receiver's executor, even if the handler has another one.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/associated_immediate_executor.hpp>
#include <boost/asio/associator.hpp>
#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/execution/blocking.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/require.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <tuple>
#include <utility>

#include <gpurx/detail/initiation.hpp>

namespace gpurx::detail {

// Calls `function` on `there`: immediately if `may` permits it, or never before this function returns.
enum class blocking { possibly, never };

// The overload for strands avoids allocations. A strand's own execute() and post() allocate if the strand is called
// through an erased executor, or contains one. The query for its blocking property allocates. A non-blocking executor
// is another object, made for this one call. At one time these use more blocks than Asio caches for a thread.
template <class Inner, class Function>
void execute_on(asio::strand<Inner> const& there, blocking may, Function&& function)
{
    if (may == blocking::possibly)
        return there.dispatch(std::forward<Function>(function), std::allocator<void>{});
    asio::require(there.get_inner_executor(), asio::execution::blocking_t::never)
        .execute([there, next = std::forward<Function>(function)]() mutable {
            there.dispatch(std::move(next), std::allocator<void>{});
        });
}

template <class Function>
void execute_on(asio::any_io_executor const& there, blocking may, Function&& function)
{
    if (auto const* const erased = there.target<asio::strand<asio::any_io_executor>>())
        execute_on(*erased, may, std::forward<Function>(function));
    else if (auto const* const known = there.target<asio::strand<asio::io_context::executor_type>>())
        execute_on(*known, may, std::forward<Function>(function));
    else if (auto const* const of_pool = there.target<asio::strand<asio::thread_pool::executor_type>>())
        execute_on(*of_pool, may, std::forward<Function>(function));
    else if (may == blocking::possibly)
        there.execute(std::forward<Function>(function));
    else
        asio::require(there, asio::execution::blocking_t::never).execute(std::forward<Function>(function));
}

// The last step: releases the claim, then calls the handler, which may start the next operation.
template <class Handler, class Claim, class... Results>
struct completion_step {
    Handler handler;
    Claim claim;
    std::tuple<Results...> results;

    void operator()()
    {
        claim.release();
        std::apply([this](auto&... result) { std::move(handler)(std::move(result)...); }, results);
    }
};

// Calls `step` after the initiating function has returned, or earlier if the handler's immediate executor permits it.
template <class Handler, class Claim, class... Results>
void complete_soon(completion_step<Handler, Claim, Results...> step, completion_site const& site)
{
    asio::any_io_executor const own = step.claim.get_executor();
    if (site.has_immediate_executor)
        return asio::dispatch(asio::get_associated_immediate_executor(step.handler, own), std::move(step));
    if (site.strand != nullptr)
        execute_on(*site.strand, blocking::never, std::move(step));
    else if (site.is_known)
        execute_on(site.or_else(own), blocking::never, std::move(step));
    else
        asio::dispatch(asio::require(own, asio::execution::blocking_t::never), std::move(step));
}

// Base of the handlers of one operation's steps. They use the executor and the allocator of the operation's handler. A
// Claim has get_executor(), the executor of the operation's object, and release().
template <class Claim, class... Results>
class async_op {
  public:
    using handler_type = asio::any_completion_handler<void(Results...)>;
    using executor_type = asio::any_io_executor;
    using allocator_type = asio::associated_allocator_t<handler_type>;
    using cancellation_slot_type = asio::cancellation_slot;

    async_op(Claim claim, completion_site site, handler_type handler) noexcept
        : handler_{std::move(handler)}, claim_{std::move(claim)}, site_{std::move(site)}
    {
        site_.erase_strand();
    }

    [[nodiscard]] executor_type get_executor() const noexcept { return site_.or_else(claim_.get_executor()); }
    [[nodiscard]] allocator_type get_allocator() const noexcept { return asio::get_associated_allocator(handler_); }
    [[nodiscard]] cancellation_slot_type get_cancellation_slot() const noexcept { return cancellation_.slot(); }

  protected:
    [[nodiscard]] Claim const& claim() const noexcept { return claim_; }

    // Call it before the first wait. Only cancellation types that pass `filter` reach the waits.
    template <class Filter>
    void heed_cancellation(Filter filter)
    {
        cancellation_ = asio::cancellation_state{asio::get_associated_cancellation_slot(handler_), filter, filter};
    }
    // Call it at the end of a wait. Returns the cancellation types requested so far.
    [[nodiscard]] asio::cancellation_type end_wait() noexcept
    {
        cancellation_.slot().clear();
        return cancellation_.cancelled();
    }

    // Never calls the handler inside the initiating function, unless its immediate executor permits it.
    void complete_soon(Results... results) { detail::complete_soon(last_step(std::move(results)...), site_); }
    // Call it at the end of a wait, on get_executor().
    void complete(Results... results)
    {
        if (site_.is_known)
            return last_step(std::move(results)...)();
        auto const io = claim_.get_executor();
        asio::dispatch(io, last_step(std::move(results)...));
    }

  private:
    [[nodiscard]] completion_step<handler_type, Claim, Results...> last_step(Results&&... results)
    {
        return {std::move(handler_), std::move(claim_), {std::move(results)...}};
    }

    handler_type handler_;
    Claim claim_;
    completion_site site_;
    asio::cancellation_state cancellation_;
};

}  // namespace gpurx::detail

// Forwards the associated types of the handler. If the handler lacks one, the step lacks it too.
template <template <class, class> class Associator, class Handler, class Claim, class... Results, class Candidate>
struct boost::asio::associator<Associator, gpurx::detail::completion_step<Handler, Claim, Results...>, Candidate>
    : Associator<Handler, Candidate> {
    static auto get(gpurx::detail::completion_step<Handler, Claim, Results...> const& step) noexcept
    {
        return Associator<Handler, Candidate>::get(step.handler);
    }
    static auto get(gpurx::detail::completion_step<Handler, Claim, Results...> const& step,
                    Candidate const& candidate) noexcept
    {
        return Associator<Handler, Candidate>::get(step.handler, candidate);
    }
};
