// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The default token, with diagnostics in exceptions: use_awaitable.
#pragma once

#include <boost/asio/associator.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <type_traits>
#include <utility>

#include <gpurx/detail/initiation.hpp>
#include <gpurx/error.hpp>

namespace gpurx {

/// @brief A token like `boost::asio::use_awaitable`, with diagnostics in exceptions.
///
/// A failed `co_await` of an operation of this library throws a gpurx::system_error. Its `what()` and `why()` have the
/// operation, its object and advice. Asio's own token throws a `boost::system::system_error` with only the code. For
/// operations of other libraries this token does the same.
///
/// Allocations, executor and cancellation are those of Asio's token.
///
/// @par Cost
/// None unless the operation fails.
struct use_awaitable_t {
    /// @brief Converts to Asio's token.
    constexpr operator asio::use_awaitable_t<>() const noexcept { return {}; }
};
/// @brief The token, by value.
inline constexpr use_awaitable_t use_awaitable{};

namespace detail {

// Calls the handler of an awaitable with the exception that failure_of(object, code) makes.
template <class Handler, class Object>
struct explaining_handler {
    Handler handler;
    Object of;

    template <class... Results>
    void operator()(error_code code, Results&&... results)
    {
        auto failure = code ? failure_of(of, code) : std::exception_ptr{};
        of = Object{};  // so that the continuing coroutine does not keep it alive
        std::move(handler)(std::move(failure), std::forward<Results>(results)...);
    }
};

// Begins an operation with an explaining_handler. The first argument is the object of the operation.
template <class Initiation>
struct explaining_initiation {
    Initiation initiation;

    template <class Handler, class Object, class... Arguments>
    void operator()(Handler&& handler, Object&& of, Arguments&&... arguments)
    {
        explaining_handler<std::decay_t<Handler>, std::decay_t<Object>> explaining{std::forward<Handler>(handler), of};
        std::move(initiation)(std::move(explaining), std::forward<Object>(of), std::forward<Arguments>(arguments)...);
    }
};

template <class Initiation>
inline constexpr bool is_of_this_library = false;
template <class Start>
inline constexpr bool is_of_this_library<initiation<Start>> = true;

}  // namespace detail

}  // namespace gpurx

// Forwards the associated types of the wrapped handler.
template <template <class, class> class Associator, class Handler, class Object, class Candidate>
struct boost::asio::associator<Associator, gpurx::detail::explaining_handler<Handler, Object>, Candidate>
    : Associator<Handler, Candidate> {
    static auto get(gpurx::detail::explaining_handler<Handler, Object> const& of) noexcept
    {
        return Associator<Handler, Candidate>::get(of.handler);
    }
    static auto get(gpurx::detail::explaining_handler<Handler, Object> const& of, Candidate const& candidate) noexcept
    {
        return Associator<Handler, Candidate>::get(of.handler, candidate);
    }
};

template <class... Signatures>
struct boost::asio::async_result<gpurx::use_awaitable_t, Signatures...>
    : async_result<boost::asio::use_awaitable_t<>, Signatures...> {};

template <class Result, class... Results>
struct boost::asio::async_result<gpurx::use_awaitable_t, Result(boost::system::error_code, Results...)> {
    using plain = async_result<boost::asio::use_awaitable_t<>, Result(boost::system::error_code, Results...)>;
    using explained = async_result<boost::asio::use_awaitable_t<>, Result(std::exception_ptr, Results...)>;
    using return_type = typename plain::return_type;

    template <class Initiation, class... Arguments>
    static return_type initiate(Initiation&& initiation, gpurx::use_awaitable_t token, Arguments&&... arguments)
    {
        using decayed = std::decay_t<Initiation>;
        if constexpr (gpurx::detail::is_of_this_library<decayed>)
            return explained::initiate(
                gpurx::detail::explaining_initiation<decayed>{std::forward<Initiation>(initiation)},
                boost::asio::use_awaitable_t<>{token}, std::forward<Arguments>(arguments)...);
        else
            return plain::initiate(std::forward<Initiation>(initiation), boost::asio::use_awaitable_t<>{token},
                                   std::forward<Arguments>(arguments)...);
    }
};
