// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Acceptors of connections whose bytes land in a session's memory.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associator.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include <gpurx/detail/initiation.hpp>
#include <gpurx/error.hpp>
#include <gpurx/receiver.hpp>
#include <gpurx/session.hpp>

namespace gpurx {

namespace detail {

class acceptor_state;

using accept_handler = asio::any_completion_handler<void(error_code)>;

// Compiled once, in flow/acceptor.cpp.
void start_accept(std::shared_ptr<acceptor_state> state, std::shared_ptr<receiver_state> into, completion_site site,
                  accept_handler handler);
[[nodiscard]] std::shared_ptr<receiver_state> make_receiver_state(acceptor_state& of,
                                                                  asio::any_io_executor const& executor);
[[nodiscard]] asio::ip::tcp::acceptor& socket_of(acceptor_state& state) noexcept;
[[nodiscard]] std::exception_ptr failure_of(std::shared_ptr<acceptor_state> const& state, error_code code) noexcept;

// The handler of an accept that makes its receiver.
template <class Handler, class Receiver>
struct receiver_handler {
    Handler handler;
    Receiver accepted;

    void operator()(error_code code) { std::move(handler)(code, std::move(accepted)); }
};
template <class Handler, class Receiver>
receiver_handler(Handler, Receiver) -> receiver_handler<Handler, Receiver>;

}  // namespace detail

/// @brief Base of acceptors: members that do not depend on the executor's type.
///
/// To set an acceptor up, call open(), bind(), steer() and listen() in this order. Set options between open() and
/// bind().
///
/// @par Errors
/// Functions without `error_code&` throw system_error. The other functions set the code; why() then returns the failed
/// operation and advice.
class acceptor_base {
  public:
    /// @brief Returns whether the acceptor is open.
    [[nodiscard]] bool is_open() const noexcept;

    /// @brief Opens the socket with `FD_CLOEXEC`: executed programs do not inherit it.
    /// @throws system_error The system's errors.
    void open(asio::ip::tcp const& protocol);
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    void open(asio::ip::tcp const& protocol, error_code& code);
    /// @brief Binds the socket to `local`.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// `asio::error::address_in_use`: another socket has the port. A port has one acceptor, however many threads serve
    /// it (see basic_acceptor).
    void bind(asio::ip::tcp::endpoint const& local);
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    void bind(asio::ip::tcp::endpoint const& local, error_code& code);
    /// @brief Steers connections to the session's queues, as rx_session::steer() does.
    ///
    /// Each connection gets its share of `rx_session_options::receive_memory`.
    ///
    /// The rule lives as long as the session.
    ///
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - `asio::error::address_in_use`: the socket has `SO_REUSEPORT`. Other sockets could then listen on the port.
    ///   Their connections could land in this session's memory, and this acceptor's connections in other memory.
    /// - The errors of rx_session::steer().
    ///
    /// @par Cost
    /// Except with transport `copy`, the call blocks for some ms of netlink calls.
    void steer();
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    void steer(error_code& code);
    /// @brief Listens for connections. Calls steer() first if the program did not.
    ///
    /// Except with transport `copy`, a waiting connection takes as much session memory as a flow
    /// (docs/memory-budget.md). So fewer connections may wait when flows exist. Waiting connections and flows together
    /// are at most `max_flows`, as of the last accept. One connection may always wait. Several acceptors of one session
    /// do not count each other's connections.
    ///
    /// @param backlog Most connections that may wait to be accepted. 0: as many as the session has flows.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// Those of steer() and of `listen`.
    void listen(int backlog = 0);
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    void listen(int backlog, error_code& code);

    /// @brief Sets the function that assigns connections to memories.
    ///
    /// The function is for sessions with several memories.
    ///
    /// An accept calls `choose` with the connection's peer, on the acceptor's strand, before the flow begins. The
    /// function returns the index of the memory. It must not throw. An accept to a receiver constructed with
    /// rx_session::part() does not call it.
    ///
    /// @param choose Function. If empty, as by default, the memories take turns. The turns skip a memory without room
    ///   for a flow, and a memory whose GPU is in an error state.
    /// @pre No accept is pending.
    void choose_memory(std::function<std::size_t(asio::ip::tcp::endpoint const& peer)> choose);

    /// @brief Completes pending accepts with `operation_aborted`, without losing a connection.
    ///
    /// This includes accepts that are ready but have not taken their connection yet. Waiting connections continue to
    /// wait.
    void cancel() noexcept;
    /// @brief Completes pending accepts as cancel() does, and resets waiting connections.
    ///
    /// The session's rule stays.
    void close() noexcept;

    /// @brief Returns the endpoint that the socket is bound to.
    /// @throws system_error The system's errors.
    [[nodiscard]] asio::ip::tcp::endpoint local_endpoint() const;
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    [[nodiscard]] asio::ip::tcp::endpoint local_endpoint(error_code& code) const;

    /// @brief Sets an option of the socket, as Asio does.
    ///
    /// Examples are `asio::socket_base::reuse_address` and `asio::ip::v6_only`.
    ///
    /// `SO_REUSEPORT` is not allowed: steer() refuses it.
    ///
    /// @throws system_error The system's errors.
    template <class Option>
    void set_option(Option const& option)
    {
        error_code code;
        set_option(option, code);
        check(code);
    }
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    template <class Option>
    void set_option(Option const& option, error_code& code)
    {
        detail::socket_of(*state()).set_option(option, code);
        failed_at("set option of", code);
    }
    /// @brief Gets an option of the socket, as Asio does.
    /// @throws system_error The system's errors.
    template <class Option>
    void get_option(Option& option) const
    {
        error_code code;
        get_option(option, code);
        check(code);
    }
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    template <class Option>
    void get_option(Option& option, error_code& code) const
    {
        code = asio::error::bad_descriptor;
        if (state_ != nullptr)
            detail::socket_of(*state_).get_option(option, code);
        failed_at("get option of", code);
    }

    /// @brief Returns the descriptor; -1 if the acceptor is not open.
    ///
    /// Use it for system calls that this class does not wrap.
    ///
    /// Do not accept from it, close it or change `O_NONBLOCK`.
    [[nodiscard]] int native_handle() const noexcept;
    /// @brief Returns the diagnostics of the last function or operation that failed (error.hpp).
    [[nodiscard]] diagnostics why() const;

  protected:
    /// @brief Constructs the base of an acceptor.
    acceptor_base(asio::any_io_executor executor, rx_session& session);
    /// @brief Moves the acceptor.
    acceptor_base(acceptor_base&& other) noexcept;
    /// @brief Closes the present acceptor and moves the other.
    acceptor_base& operator=(acceptor_base&& other) noexcept;
    /// @brief Completes pending accepts with `operation_aborted`.
    ~acceptor_base();

    /// @brief Returns the executor, whatever its type.
    [[nodiscard]] asio::any_io_executor const& erased_executor() const noexcept { return executor_; }
    /// @brief Returns the state; for a moved-from acceptor, a state without a session.
    [[nodiscard]] std::shared_ptr<detail::acceptor_state> const& state();

  private:
    acceptor_base(asio::any_io_executor executor, std::shared_ptr<detail::acceptor_state> state) noexcept;

    void check(error_code code) const;
    void failed_at(char const* operation, error_code code) const;

    asio::any_io_executor executor_;
    std::shared_ptr<detail::acceptor_state> state_;
};

/// @brief An acceptor: listens for connections and makes receivers of them.
///
/// The rules of operations are those of basic_receiver. The default executor of a handler is the acceptor's.
///
/// A port has one acceptor. With `SO_REUSEPORT` several acceptors would share a port. The kernel would distribute
/// connections between them, without regard to the session that their bytes were steered to. So steer() refuses the
/// option. To serve a port with several threads, accept in one place and give each receiver its executor:
/// @code{.cpp}
/// // In a coroutine, given acceptor, session, next_executor
/// gpurx::receiver rx{next_executor(), session};
/// co_await acceptor.async_accept(rx);
/// @endcode
///
/// A moved-from acceptor keeps only its executor, and is not open. Its functions and operations fail with
/// `bad_descriptor`.
///
/// @par Lifetime
/// An acceptor keeps the state that it needs of the session. Its destruction completes pending accepts with
/// `operation_aborted`.
///
/// @par Thread safety
/// As basic_receiver.
///
/// @tparam Executor Executor of the acceptor.
template <class Executor = asio::any_io_executor>
class basic_acceptor : public acceptor_base {
  public:
    /// @brief Type of the executor.
    using executor_type = Executor;
    /// @brief The same I/O object with another executor.
    template <class Other>
    struct rebind_executor {
        /// @brief Type of the acceptor.
        using other = basic_acceptor<Other>;
    };

    /// @brief Constructs an acceptor that is not open.
    basic_acceptor(executor_type const& executor, rx_session& session)
        : acceptor_base{executor, session}, executor_{executor}
    {}
    /// @brief Opens, sets reuse_address, binds to `local`, steers and listens.
    /// @throws system_error The errors of the steps.
    basic_acceptor(executor_type const& executor, rx_session& session, asio::ip::tcp::endpoint const& local)
        : basic_acceptor{executor, session}
    {
        open(local.protocol());
        set_option(asio::socket_base::reuse_address{true});
        bind(local);
        listen();
    }
    /// @brief Constructs an acceptor that is not open, with an execution context's executor.
    /// @tparam ExecutionContext A type that converts to `asio::execution_context&`.
    template <class ExecutionContext>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> basic_acceptor(ExecutionContext& context,
                                                                                             rx_session& session)
        : basic_acceptor{executor_type{context.get_executor()}, session}
    {}
    /// @brief Listens on `local` as above, with an execution context's executor.
    /// @tparam ExecutionContext A type that converts to `asio::execution_context&`.
    /// @throws system_error The errors of the steps.
    template <class ExecutionContext>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> basic_acceptor(
        ExecutionContext& context, rx_session& session, asio::ip::tcp::endpoint const& local)
        : basic_acceptor{executor_type{context.get_executor()}, session, local}
    {}

    /// @brief Moves the acceptor.
    basic_acceptor(basic_acceptor&& other) noexcept : acceptor_base{std::move(other)}, executor_{other.get_executor()}
    {}
    /// @brief Closes the present acceptor and moves the other.
    basic_acceptor& operator=(basic_acceptor&& other) noexcept
    {
        acceptor_base::operator=(std::move(other));
        executor_ = other.executor_;
        return *this;
    }
    /// @brief Moves an acceptor with another executor type (`as_default_on`).
    /// @tparam Other A type that converts to `Executor`.
    template <class Other>
    requires std::convertible_to<Other, Executor> basic_acceptor(basic_acceptor<Other>&& other)
    noexcept : acceptor_base{std::move(other)}, executor_{other.get_executor()} {}
    /// @brief Completes pending accepts with `operation_aborted`.
    ~basic_acceptor() = default;

    /// @brief Returns the executor.
    [[nodiscard]] executor_type get_executor() const noexcept { return executor_; }

    /// @brief Accepts the next connection to `into`.
    ///
    /// The receiver may be moved meanwhile. It serves no other operation until this one has completed. A receiver that
    /// is closed or destroyed gets no connection. When the next connection comes, the accept then completes with
    /// `operation_aborted`. The connection continues to wait.
    ///
    /// @param into A receiver that is not open, of this session or of a part of it (rx_session::part()). With transport
    ///   `copy` it may be of any session.
    /// @param token Completion token with the signature `void(error_code)`.
    ///
    /// @par Per-operation cancellation
    /// Terminal, partial and total. An accept that completes with `operation_aborted` has taken no connection.
    ///
    /// @par Errors
    /// - errc::too_many_flows: the session, or the chosen part, has no room for another flow, and a connection was
    ///   reset. The acceptor continues. Close a flow before the next accept; otherwise the acceptor resets further
    ///   connections.
    /// - `EINVAL`: the function of choose_memory() returned the index of a part that does not exist. The connection was
    ///   reset.
    /// - The CUDA driver's errors: the GPU of the chosen part is in a permanent error state, and the connection was
    ///   reset. With `devmem`, also: the GPU of the first memory is in a permanent error state, and nothing can arrive
    ///   any more.
    /// - errc::already_running and `asio::error::already_open`, about the receiver.
    /// - The errors of `accept()`, such as `EMFILE`: the connection continues to wait.
    ///
    /// @par Cost
    /// One `accept4`, and the cost of adopting a connection.
    template <class Other, asio::completion_token_for<void(error_code)> Token = detail::default_token<Executor>>
    auto async_accept(basic_receiver<Other>& into, Token&& token = Token())
    {
        return asio::async_initiate<Token, void(error_code)>(
            detail::initiation{erased_executor(),
                               [](auto of, auto to, auto site, auto&& handler) {
                                   detail::start_accept(std::move(of), std::move(to), std::move(site),
                                                        std::forward<decltype(handler)>(handler));
                               }},
            token, state(), detail::receiver_access::state(into));
    }

    /// @brief Accepts to a new receiver on this acceptor's executor; otherwise as above.
    /// @param token Completion token with the signature `void(error_code, basic_receiver<Executor>)`. On an error the
    ///   receiver is not open.
    template <
        asio::completion_token_for<void(error_code, basic_receiver<Executor>)> Token = detail::default_token<Executor>>
    auto async_accept(Token&& token = Token())
    {
        return asio::async_initiate<Token, void(error_code, basic_receiver<Executor>)>(
            detail::initiation{erased_executor(),
                               [](auto of, executor_type const& executor, auto site, auto&& handler) {
                                   auto to = detail::make_receiver_state(*of, executor);
                                   detail::start_accept(
                                       std::move(of), to, std::move(site),
                                       detail::receiver_handler{std::forward<decltype(handler)>(handler),
                                                                basic_receiver<Executor>{executor, to}});
                               }},
            token, state(), executor_);
    }

  private:
    executor_type executor_;
};

/// @brief An acceptor with the executor `asio::any_io_executor`.
using acceptor = basic_acceptor<>;

}  // namespace gpurx

// Forwards the associated types of the wrapped handler.
template <template <class, class> class Associator, class Handler, class Receiver, class Candidate>
struct boost::asio::associator<Associator, gpurx::detail::receiver_handler<Handler, Receiver>, Candidate>
    : Associator<Handler, Candidate> {
    static auto get(gpurx::detail::receiver_handler<Handler, Receiver> const& of) noexcept
    {
        return Associator<Handler, Candidate>::get(of.handler);
    }
    static auto get(gpurx::detail::receiver_handler<Handler, Receiver> const& of, Candidate const& candidate) noexcept
    {
        return Associator<Handler, Candidate>::get(of.handler, candidate);
    }
};
