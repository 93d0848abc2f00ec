// SPDX-License-Identifier: Apache-2.0
//
// A receiver and its operations share a receiver_state. It has the Asio objects, which must be destroyed before their
// execution context. detail::flow has the resources that loans need. All members belong to the receiver's strand.
#pragma once

#include <algorithm>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gpurx/detail/initiation.hpp>
#include <gpurx/error.hpp>
#include <gpurx/read.hpp>
#include <gpurx/stats.hpp>

#include "base/fork.hpp"
#include "flow.hpp"
#include "session/session_state.hpp"
#include "stream_fsm.hpp"

namespace gpurx::detail {

// A running async_receive or async_read. It is stored here because Asio moves the objects that it is given.
template <class Machine, class Result>
struct running_op {
    using machine_type = Machine;
    using result_type = Result;
    using handler_type = asio::any_completion_handler<void(error_code, Result)>;

    running_op(Machine const& runs, landing const& first, handler_type&& completes, completion_site&& at) noexcept
        : machine{runs}, destination{first}, handler{std::move(completes)}, site{std::move(at)}
    {
        if (site.strand != nullptr)
            strand.emplace(*std::exchange(site.strand, nullptr));
    }

    Machine machine;
    landing destination;
    handler_type handler;
    completion_site site;
    std::optional<completion_site::erased_strand> strand;  // copy of site.strand, which does not outlive the start
    asio::cancellation_state cancellation;
    // Keeps the handler's execution context busy, if it is not the receiver's.
    std::optional<asio::any_io_executor> work;
};
using receive_op = running_op<receive_fsm, rx_buffer>;
using read_op = running_op<read_fsm, std::size_t>;

class receiver_state {
    // Read-ahead for headers if loans are bounded, so that few frames share a batch.
    static constexpr std::size_t bounded_read_ahead = 64 << 10;

    // The Asio objects. A forked child leaves them as they are. To close them would remove the parent's registrations
    // from an epoll that both may share, and would take a lock that a thread of the parent may hold.
    struct descriptors {
        explicit descriptors(asio::any_io_executor const& executor) : socket{executor}, wake{executor} {}
        asio::ip::tcp::socket socket;
        asio::posix::stream_descriptor wake;
    };

  public:
    // `of_part`: the program has chosen the memory of its flows.
    receiver_state(asio::any_io_executor const& executor, std::shared_ptr<session_state> session, bool of_part = false);
    receiver_state(receiver_state const&) = delete;
    receiver_state& operator=(receiver_state const&) = delete;
    ~receiver_state();

    [[nodiscard]] asio::any_io_executor const& get_executor() const noexcept { return executor_; }
    // Executor of waits: the receiver's executor without its strands. Only the last step of an operation needs the
    // strands. Asio queries an executor's properties several times per wait, and each query of a type-erased strand
    // allocates.
    [[nodiscard]] asio::any_io_executor const& io_executor() const noexcept { return io_executor_; }
    // Returns whether a handler without its own executor runs on io_executor().
    [[nodiscard]] bool has_no_strand() const noexcept { return has_no_strand_; }
    [[nodiscard]] asio::ip::tcp::socket& socket() noexcept { return socket_; }
    [[nodiscard]] asio::ip::tcp::socket const& socket() const noexcept { return socket_; }
    [[nodiscard]] gpurx::stats stats() const noexcept { return flow_ ? flow_->stats() : ended_; }

    // ---- the connection ----

    // True from open() or adopt() until close().
    [[nodiscard]] bool is_open() const noexcept { return flow_ != nullptr; }
    [[nodiscard]] std::shared_ptr<flow> const& connection() const noexcept { return flow_; }
    // Takes a place in the session and opens a socket. If is_steering(), a rule follows: await_rule(), steered(). Then
    // the caller connects the socket.
    void open(asio::ip::tcp::endpoint const& peer, error_code& code);
    [[nodiscard]] bool is_steering() const noexcept { return steering_ != nullptr; }
    // Calls `handler` with an error_code when the session's thread has made the rule, or has failed to.
    template <class Handler>
    void await_rule(Handler&& handler)
    {
        wake_.async_wait(asio::posix::descriptor_base::wait_read, std::forward<Handler>(handler));
    }
    // Returns whether the attempt to make the rule is over, successful or not.
    [[nodiscard]] bool is_steered() const noexcept;
    // Call it with the result of that wait. Takes the rule, or closes and returns the error.
    [[nodiscard]] error_code steered(asio::ip::tcp::endpoint const& peer, error_code code);
    // Reports the result of the connect. Closes on an error.
    void connected(asio::ip::tcp::endpoint const& peer, error_code code);
    // Reports that the connect was not attempted.
    void refused(asio::ip::tcp::endpoint const& peer, error_code code);
    // Closes `accepted` on an error. `received`: bytes that the program has read from it.
    void adopt(asio::ip::tcp::socket accepted, asio::const_buffer received, error_code& code);
    // The same with a descriptor, for a flow of `session` whose bytes have arrived in the memory of `arrives_in` so
    // far. On an error the descriptor stays in `accepted`.
    void adopt(unique_fd& accepted, asio::ip::tcp const& protocol, std::shared_ptr<session_state> const& session,
               std::shared_ptr<session_state> const& arrives_in, error_code& code);
    [[nodiscard]] std::shared_ptr<session_state> const& session() const noexcept { return session_; }
    [[nodiscard]] bool is_of_part() const noexcept { return of_part_; }
    // Returns the diagnostics of the last failed connect or adopt(), or of a failure noted later; empty: none.
    [[nodiscard]] diagnostics why() const;
    // The same for an operation whose failure is not noted.
    [[nodiscard]] diagnostics why_not(char const* operation, error_code code) const;
    // Notes a failure for why(). `operation` is a literal.
    void failed(char const* operation, error_code code) noexcept
    {
        failed_at_ = operation;
        failed_with_ = code;
    }
    // In a forked child it closes descriptors, without effect on the parent.
    void close() noexcept;
    // The program closes the receiver, or destroys it.
    void abandon() noexcept;
    [[nodiscard]] unsigned closings() const noexcept { return closings_; }
    // Returns the number of bytes that can be received without a wait. Precondition: is_open().
    [[nodiscard]] std::size_t available(error_code& code) const;

    // ---- operations ----

    [[nodiscard]] bool writes_in_place() const noexcept { return flow_ != nullptr && flow_->writes_in_place(); }

    // A receiver serves one operation at a time. A running operation holds a claim.
    class claim;
    [[nodiscard]] bool is_busy() const noexcept { return busy_; }
    // Ends the waits of the running operation and of a write.
    void cancel() noexcept;
    // Whether cancel() was called since the running operation began.
    [[nodiscard]] bool was_cancelled() const noexcept { return cancels_ != cancels_before_; }
    // Number of calls of cancel() so far. For composed operations: the receiver is free between their parts.
    [[nodiscard]] unsigned cancels() const noexcept { return cancels_; }

    // Sets the destinations of the next read and returns the first. Precondition: no operation is running. Errors: that
    // of the first unusable destination; no memory for the list.
    [[nodiscard]] landing land_on(destinations_ref to, std::size_t& size, error_code& code);

    // Runs the actions of `machine` until one takes time: returns a wait, a yield or done. Advances `destination` by
    // the bytes placed.
    template <class Machine>
    [[nodiscard]] stream_action run(Machine& machine, stream_result result, landing& destination);
    // Starts a wait or a yield that run() returned. Calls `handler` with an error_code, or without arguments.
    template <class Handler>
    void start_wait(stream_action::what kind, Handler&& handler);
    // The running operation. The holder of the claim decides when it begins and ends.
    template <class Op, class... Parts>
    Op& begin(Parts&&... parts)
    {
        return running_.emplace<Op>(std::forward<Parts>(parts)...);
    }
    template <class Op>
    [[nodiscard]] Op& running() noexcept
    {
        return *std::get_if<Op>(&running_);
    }
    void end() noexcept { running_.emplace<std::monostate>(); }
    // Returns the loan of the receive that is done; empty if it has no bytes.
    [[nodiscard]] rx_buffer lend(stream_action const& done) noexcept
    {
        if (done.code || done.bytes == 0)
            return {};
        return flow::lend(flow_, to_lend_ != nullptr ? std::move(to_lend_) : carried_.pop());
    }
    // No loan can be larger, whatever the limit.
    [[nodiscard]] std::size_t memory_size() const noexcept
    {
        return flow_ == nullptr ? 0 : flow_->place().session().memory().span().size();
    }
    // From now on a read takes only a few bytes from the socket beyond its own. The program requests loans of exact
    // sizes, and a loan holds all of its batch.
    void bound_read_ahead() noexcept { read_ahead_ = bounded_read_ahead; }

  private:
    // Note for why() the operation that begins, and its result.
    void begin_attempt(char const* operation, std::string object);
    void end_attempt(error_code code);
    void set_up(asio::ip::tcp::endpoint const& peer, error_code& code);
    void steer(asio::ip::tcp::endpoint const& local, asio::ip::tcp::endpoint const& peer, error_code& code);
    void move_in(asio::ip::tcp::socket accepted, asio::const_buffer received, error_code& code);
    void move_in(unique_fd& accepted, asio::ip::tcp const& protocol, session_state& session,
                 std::shared_ptr<session_state> const& arrives_in, error_code& code);
    void take_over(unique_fd socket, std::unique_ptr<flow_place> place, asio::ip::tcp const& protocol,
                   error_code& code);
    void forget() noexcept;
    [[nodiscard]] stream_facts facts(landing const& destination) const noexcept;
    // Notes that a receive has ended with `code`.
    void note_end(error_code code) noexcept;
    // Takes the bytes that a finished receive lends. A whole batch stays in its place until lend().
    [[nodiscard]] stream_action take(stream_action done) noexcept
    {
        if (done.bytes > 0 && carried_.front().bytes != done.bytes)
            to_lend_ = flow_->take(carried_, done.bytes, done.code);
        return done;
    }
    // Ends a read: bytes that its transport still holds go to their destination.
    [[nodiscard]] stream_action finish(stream_action done) noexcept
    {
        std::size_t lost = 0;
        if (auto const code = flow_->finish(lost)) {
            done.code = code;
            done.bytes -= std::min(lost, done.bytes);
        }
        return done;
    }
    // Makes room for one more batch before bytes leave the socket, because nothing may fail afterwards.
    [[nodiscard]] bool make_room(error_code& code) noexcept;
    // Receives a batch of at most `limit` bytes and appends it to the carried batches. Precondition: make_room().
    void receive(std::size_t limit, page_use use, error_code& code) noexcept
    {
        auto batch = flow_->receive(limit, code);
        if (code)
            return note_end(code);
        batch->use.store(use, std::memory_order_relaxed);
        flow_->carry(carried_, std::move(batch));
    }
    [[nodiscard]] stream_result place(landing const& destination, std::size_t size) noexcept;
    // Advances `destination` by `bytes` filled bytes.
    void move_on(landing& destination, std::size_t bytes) noexcept;
    // Returns true if there is a reason to wait.
    [[nodiscard]] bool prepare_wait(stream_action const& wait, landing const& destination, error_code& code) noexcept;
    // The same for resources that return, not for the socket.
    [[nodiscard]] bool arrange_wake(stream_action const& wait, landing const& destination) noexcept;
    void after_wait() noexcept;

    asio::any_io_executor executor_;
    asio::any_io_executor io_executor_;
    bool has_no_strand_;
    std::shared_ptr<session_state> session_;
    bool of_part_;
    birthplace born_;
    // Separate descriptors, opened by the library. If Asio had opened the socket, a close would leave it registered
    // with epoll while the flow's descriptor keeps the file open.
    process_ptr<descriptors> descriptors_;
    asio::ip::tcp::socket& socket_ = descriptors_->socket;
    asio::posix::stream_descriptor& wake_ = descriptors_->wake;  // open after its first use

    std::shared_ptr<flow> flow_;
    std::shared_ptr<steering> steering_;  // null: no rule is awaited
    bool connected_ = false;
    bool busy_ = false;
    unsigned cancels_ = 0;
    unsigned cancels_before_ = 0;  // the running operation
    unsigned closings_ = 0;
    std::variant<std::monostate, receive_op, read_op> running_;
    stream_action::what waiting_for_ = stream_action::what::done;
    carried_batches carried_;
    std::unique_ptr<loan> to_lend_;
    std::size_t read_ahead_ = unbounded;
    std::vector<landing> landings_;  // destinations of the running read; the next is next_landing_
    std::size_t next_landing_ = 0;
    error_code over_;
    diagnostics why_;                  // of connect and adopt()
    char const* failed_at_ = nullptr;  // operation that failed later; null: none
    error_code failed_with_;
    gpurx::stats ended_;  // of the last flow, when it was closed
};

class receiver_state::claim {
  public:
    // Not granted if the receiver is busy.
    explicit claim(std::shared_ptr<receiver_state> state) noexcept : state_{std::move(state)}, granted_{!state_->busy_}
    {
        state_->busy_ = true;
        if (granted_)
            state_->cancels_before_ = state_->cancels_;
    }
    claim(claim&& other) noexcept = default;
    claim& operator=(claim&&) = delete;
    ~claim() { release(); }

    [[nodiscard]] bool granted() const noexcept { return granted_; }
    // False once moved from or released.
    [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
    [[nodiscard]] receiver_state& state() const noexcept { return *state_; }
    [[nodiscard]] asio::any_io_executor const& get_executor() const { return state_->get_executor(); }
    void release() noexcept
    {
        if (state_ != nullptr && granted_)
            state_->busy_ = false;
        state_.reset();
    }

  private:
    std::shared_ptr<receiver_state> state_;
    bool granted_;
};

// Inline, as is all code that runs once for each receive.
inline stream_facts receiver_state::facts(landing const& destination) const noexcept
{
    if (flow_ == nullptr)
        return {};
    auto const is_empty = carried_.empty();
    return {
        .open = connected_,
        .carried = is_empty ? 0 : carried_.bytes(),
        .carried_lent = !is_empty && carried_.front().account != nullptr,
        .gathered = is_empty ? 0 : carried_.gathered(),
        .loan_limit = flow_->loan_limit(),
        .loan_budget = flow_->loan_budget(),
        .read_budget = flow_->read_budget(),
        .read_ahead = read_ahead_,
        .drained = flow_->is_drained(),
        .stream_full = destination.backlog != nullptr && destination.backlog->is_full(),
        .over = over_,
    };
}

inline void receiver_state::after_wait() noexcept
{
    auto const what = std::exchange(waiting_for_, stream_action::what::done);
    if (flow_ == nullptr || what == stream_action::what::done)
        return;
    flow_->place().set_waiting(flow_wait::nothing);
    if (what == stream_action::what::wait_readable)
        flow_->expect_more();
    else
        flow_->drain_wake();
}

template <class Machine>
stream_action receiver_state::run(Machine& machine, stream_result result, landing& destination)
{
    if (!born_.is_here())
        return {.kind = stream_action::what::done,
                .bytes = 0,
                .code = make_error_code(boost::system::errc::operation_not_supported)};
    after_wait();
    if (was_cancelled())
        result.cancelled |= asio::cancellation_type::terminal;
    if (flow_ == nullptr)
        return machine.resume({}, result);
    flow::step const step{*flow_};
    if (!carried_.empty())
        flow_->discount(carried_.front());
    for (;;) {
        auto const next = machine.resume(facts(destination), result);
        switch (next.kind) {
            case stream_action::what::receive:
                result = {};
                if (carried_.empty() || make_room(result.code))
                    receive(next.bytes, Machine::lends ? page_use::on_loan : page_use::in_reads, result.code);
                if constexpr (Machine::lends)
                    if (!result.code && machine.is_enough(carried_.bytes()))
                        return take(machine.lend(carried_.bytes()));
                break;
            case stream_action::what::receive_in_place:
                result = {};
                result.bytes = flow_->receive_into(destination, std::min(next.bytes, destination.size), result.code);
                if (result.code)
                    note_end(result.code);
                move_on(destination, result.bytes);
                break;
            case stream_action::what::place:
                result = place(destination, std::min(next.bytes, destination.size));
                move_on(destination, result.bytes);
                break;
            case stream_action::what::wait_readable:
            case stream_action::what::wait_budget:
            case stream_action::what::wait_streams:
            case stream_action::what::wait_pages:
                result = {};
                if constexpr (!Machine::lends)
                    if (next.kind == stream_action::what::wait_readable)
                        flow_->expect(destination, machine.missing());
                if (prepare_wait(next, destination, result.code))
                    return next;
                break;
            case stream_action::what::yield:
                return next;
            case stream_action::what::done:
                return Machine::lends ? take(next) : finish(next);
        }
    }
}

template <class Handler>
void receiver_state::start_wait(stream_action::what kind, Handler&& handler)
{
    switch (kind) {
        case stream_action::what::wait_readable:
            socket_.async_wait(asio::socket_base::wait_read, std::forward<Handler>(handler));
            break;
        case stream_action::what::yield:
            asio::post(io_executor_, std::forward<Handler>(handler));
            break;
        default:
            wake_.async_wait(asio::posix::descriptor_base::wait_read, std::forward<Handler>(handler));
            break;
    }
}

}  // namespace gpurx::detail
