// SPDX-License-Identifier: Apache-2.0
//
// Initiations of asynchronous operations. An internal header.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/associated_immediate_executor.hpp>
#include <boost/asio/strand.hpp>
#include <concepts>
#include <type_traits>
#include <utility>

#include <gpurx/error.hpp>

namespace gpurx::detail {

// The executor that runs a handler, taken while the handler's type is known. A second erasure would allocate.
struct completion_site {
    using erased_strand = asio::strand<asio::any_io_executor>;

    asio::any_io_executor executor;  // the handler's own; empty: it has none, `strand`, or one not held here
    // The handler's own, where any_io_executor would allocate to hold it. Lives while the initiating function runs.
    erased_strand const* strand = nullptr;
    bool is_known = false;                // if not, ask the handler
    bool has_immediate_executor = false;  // ask the handler for it

    // Precondition: !strand.
    [[nodiscard]] asio::any_io_executor const& or_else(asio::any_io_executor const& fallback) const noexcept
    {
        return executor ? executor : fallback;
    }
    // Moves `strand` into `executor`, which allocates. For operations that allocate anyway.
    void erase_strand()
    {
        if (strand != nullptr)
            executor = *std::exchange(strand, nullptr);
    }
};

// A strand too large for any_io_executor to hold without an allocation.
template <class Executor>
inline constexpr bool is_large_strand = false;
template <class Inner>
inline constexpr bool is_large_strand<asio::strand<Inner>> = std::convertible_to<Inner, asio::any_io_executor> &&
                                                             sizeof(asio::strand<Inner>) > 3 * sizeof(void*);

// Precondition of use: the caller adds a large strand of the handler to the result (see initiation).
template <class Handler>
[[nodiscard]] completion_site site_of(Handler const& handler, asio::any_io_executor const& fallback) noexcept
{
    using associated = asio::associated_executor<Handler, asio::any_io_executor>;
    using immediate = asio::associated_immediate_executor<Handler, asio::any_io_executor>;
    constexpr bool has_none = requires
    {
        typename associated::asio_associated_executor_is_unspecialised;
    };
    constexpr bool has_no_immediate = requires
    {
        typename immediate::asio_associated_immediate_executor_is_unspecialised;
    };
    if constexpr (has_none || is_large_strand<typename associated::type>)
        return {{}, {}, true, !has_no_immediate};
    else if constexpr (std::convertible_to<typename associated::type, asio::any_io_executor>)
        return {asio::get_associated_executor(handler, fallback), {}, true, !has_no_immediate};
    else
        return {{}, {}, false, !has_no_immediate};
}

// An initiation with an executor. Adapters such as cancel_after require it.
template <class Start>
struct initiation {
    using executor_type = asio::any_io_executor;
    executor_type executor;
    Start start;

    [[nodiscard]] executor_type get_executor() const noexcept { return executor; }

    template <class Handler, class... Arguments>
    void operator()(Handler&& handler, Arguments&&... arguments) const
    {
        using own_executor = asio::associated_executor_t<std::decay_t<Handler>, executor_type>;
        auto site = site_of(handler, executor);
        if constexpr (is_large_strand<own_executor>) {
            // The same strand around an executor of erased type.
            completion_site::erased_strand const own = asio::get_associated_executor(handler, executor);
            site.strand = &own;
            start(std::forward<Arguments>(arguments)..., std::move(site), std::forward<Handler>(handler));
        } else {
            start(std::forward<Arguments>(arguments)..., std::move(site), std::forward<Handler>(handler));
        }
    }
};
template <class Start>
initiation(asio::any_io_executor, Start) -> initiation<Start>;

}  // namespace gpurx::detail
