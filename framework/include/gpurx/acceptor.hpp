// SPDX-License-Identifier: Apache-2.0
//
// acceptor: listens for connections whose bytes land in a session's memory.
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

// What an acceptor has whatever the type of its executor. A base only.
//
// Functions without `error_code&` throw system_error; after the others, why() says what failed and what to change.
class acceptor_base {
  public:
    [[nodiscard]] bool is_open() const noexcept;

    // ---- the steps of setting one up, in this order; options belong between the first and the second ----

    // The descriptor is closed in programs that are executed (FD_CLOEXEC).
    void open(asio::ip::tcp const& protocol);
    void open(asio::ip::tcp const& protocol, error_code& code);
    // asio::error::address_in_use: there is one acceptor for a port, however many threads serve it (see below).
    void bind(asio::ip::tcp::endpoint const& local);
    void bind(asio::ip::tcp::endpoint const& local, error_code& code);
    // Makes connections arrive on the session's queues, and gives them their share of receive_memory, as
    // rx_session::steer() does; the rule lives as long as the session. Blocking: some ms of netlink calls with devmem.
    // asio::error::address_in_use: the socket has SO_REUSEPORT, so others may listen on the port, whose connections
    // would land here, and ours there. Else as rx_session::steer().
    void steer();
    void steer(error_code& code);
    // Steers first, if that was not done. `backlog`: connections that may wait to be accepted; 0: as many as the
    // session has flows. With devmem they wait in the session's memory, each in the share of a flow
    // (docs/memory-budget.md). So fewer may wait there when flows exist: those and the flows are max_flows together at
    // most, as of the last accept. (One may always wait. Several acceptors of one session do not know of each other.)
    void listen(int backlog = 0);
    void listen(int backlog, error_code& code);

    // Of a session with several memories: `choose` says which one the next connection is put on, by its peer; called by
    // an accept, on the acceptor's strand, before the flow begins. It must not throw. Empty, as at first: they take
    // turns, but for those that have no place free and those of a GPU in error. A receiver made of rx_session::part()
    // is not asked about. Not while an accept is pending.
    void choose_memory(std::function<std::size_t(asio::ip::tcp::endpoint const& peer)> choose);

    // Pending accepts complete with operation_aborted, also those that a connection has made ready but that have not
    // taken it. No connection is lost: those that wait go on waiting.
    void cancel() noexcept;
    // The same, and connections that wait are reset. The session's rule stays.
    void close() noexcept;

    [[nodiscard]] asio::ip::tcp::endpoint local_endpoint() const;
    [[nodiscard]] asio::ip::tcp::endpoint local_endpoint(error_code& code) const;

    // Options of the socket, as Asio has them: asio::socket_base::reuse_address, asio::ip::v6_only. Not SO_REUSEPORT.
    template <class Option>
    void set_option(Option const& option)
    {
        error_code code;
        set_option(option, code);
        check(code);
    }
    template <class Option>
    void set_option(Option const& option, error_code& code)
    {
        detail::socket_of(*state()).set_option(option, code);
        failed_at("set option of", code);
    }
    template <class Option>
    void get_option(Option& option) const
    {
        error_code code;
        get_option(option, code);
        check(code);
    }
    template <class Option>
    void get_option(Option& option, error_code& code) const
    {
        code = asio::error::bad_descriptor;
        if (state_ != nullptr)
            detail::socket_of(*state_).get_option(option, code);
        failed_at("get option of", code);
    }

    // For what there is no function for. Do not accept from it, close it or change O_NONBLOCK. -1: not open.
    [[nodiscard]] int native_handle() const noexcept;
    // What the last function or operation that failed was doing, and what to change (error.hpp).
    [[nodiscard]] diagnostics why() const;

  protected:
    acceptor_base(asio::any_io_executor executor, rx_session& session);
    acceptor_base(acceptor_base&& other) noexcept;
    acceptor_base& operator=(acceptor_base&& other) noexcept;
    ~acceptor_base();

    [[nodiscard]] asio::any_io_executor const& erased_executor() const noexcept { return executor_; }
    // Of an acceptor that was moved from: a state without a session.
    [[nodiscard]] std::shared_ptr<detail::acceptor_state> const& state();

  private:
    acceptor_base(asio::any_io_executor executor, std::shared_ptr<detail::acceptor_state> state) noexcept;

    void check(error_code code) const;
    void failed_at(char const* operation, error_code code) const;

    asio::any_io_executor executor_;
    std::shared_ptr<detail::acceptor_state> state_;
};

// Listens for connections and makes receivers of them. The rules for asynchronous operations are those of a receiver
// (receiver.hpp); the default executor of a handler is the acceptor's.
//
// There is one acceptor for a port. SO_REUSEPORT would make several of one port, and the kernel deal connections out
// between them, whatever session their bytes were steered to; so steer() refuses it. To serve a port with several
// threads, accept in one place and give each receiver the executor that it is to run on:
//     // In a coroutine, given acceptor, session, next_executor
//     gpurx::receiver rx{next_executor(), session};
//     co_await acceptor.async_accept(rx);
//
// Lifetime: keeps what it needs of the session. Destroying it completes pending accepts with operation_aborted.
// One that was moved from keeps its executor and nothing else: it is not open, and its functions and operations end
// with bad_descriptor. Thread safety: as a receiver.
template <class Executor = asio::any_io_executor>
class basic_acceptor : public acceptor_base {
  public:
    using executor_type = Executor;
    template <class Other>
    struct rebind_executor {
        using other = basic_acceptor<Other>;
    };

    basic_acceptor(executor_type const& executor, rx_session& session)
        : acceptor_base{executor, session}, executor_{executor}
    {}
    // All steps: open, reuse_address, bind, steer, listen. Throws system_error.
    basic_acceptor(executor_type const& executor, rx_session& session, asio::ip::tcp::endpoint const& local)
        : basic_acceptor{executor, session}
    {
        open(local.protocol());
        set_option(asio::socket_base::reuse_address{true});
        bind(local);
        listen();
    }
    template <class ExecutionContext>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> basic_acceptor(ExecutionContext& context,
                                                                                             rx_session& session)
        : basic_acceptor{executor_type{context.get_executor()}, session}
    {}
    template <class ExecutionContext>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> basic_acceptor(
        ExecutionContext& context, rx_session& session, asio::ip::tcp::endpoint const& local)
        : basic_acceptor{executor_type{context.get_executor()}, session, local}
    {}

    basic_acceptor(basic_acceptor&& other) noexcept : acceptor_base{std::move(other)}, executor_{other.get_executor()}
    {}
    basic_acceptor& operator=(basic_acceptor&& other) noexcept
    {
        acceptor_base::operator=(std::move(other));
        executor_ = other.executor_;
        return *this;
    }
    template <class Other>
    requires std::convertible_to<Other, Executor> basic_acceptor(basic_acceptor<Other>&& other)
    noexcept : acceptor_base{std::move(other)}, executor_{other.get_executor()} {}
    ~basic_acceptor() = default;

    [[nodiscard]] executor_type get_executor() const noexcept { return executor_; }

    // The next connection, to a receiver that is not open: of this session, or of a part of it (rx_session::part()),
    // or, with transport copy, of any. The receiver may be moved meanwhile; it serves no other operation until this one
    // has completed. One that is closed or destroyed gets no connection: the accept completes with operation_aborted
    // when the next one comes, and that one goes on waiting.
    // Signature: void(error_code).
    // Per-operation cancellation: terminal, partial, total. operation_aborted: no connection was taken.
    // Errors: errc::too_many_flows: a connection came and was reset, as the session, or the part of it that was named,
    //   has no place for it. The acceptor goes on; close a flow before the next accept, or connections are reset as
    //   they come. EINVAL: a connection was reset, as the function of choose_memory() named a part that there is not.
    //   What the CUDA driver reports: the GPU of the part that was named is in error for good, and the connection was
    //   reset; or, with devmem, that of the first memory, where nothing can arrive any more. errc::already_running and
    //   asio::error::already_open, about the receiver; what accept() reports, such as EMFILE: the connection waits on.
    // Cost: one accept4, and what it takes to adopt a connection.
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

    // The same, with a receiver that runs on this acceptor's executor. With an error it is not open.
    // Signature: void(error_code, basic_receiver<Executor>).
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

using acceptor = basic_acceptor<>;

}  // namespace gpurx

// It has the associates of the handler within.
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
