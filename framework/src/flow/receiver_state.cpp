// SPDX-License-Identifier: Apache-2.0
#include "receiver_state.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <limits>
#include <new>
#include <string_view>
#include <utility>

#include "base/failure.hpp"
#include "base/tcp_socket.hpp"

namespace gpurx::detail {

namespace {

// The lack that a wait for something to come back is for, and its name for the watchdog.
std::pair<flow::lack, flow_wait> lacking(stream_action::what wait) noexcept
{
    switch (wait) {
        case stream_action::what::wait_budget:
            return {flow::lack::loan_budget, flow_wait::loans};
        case stream_action::what::wait_streams:
            return {flow::lack::read_budget, flow_wait::streams};
        default:
            return {flow::lack::pages, flow_wait::pages};
    }
}

// Sets `code`, unless it is one already, if the destination or its stream cannot be used.
landing landing_on(destination const& to, error_code& code) noexcept
{
    auto const where = to.where();
    landing at{.kind = where.kind(),
               .address = where.address(),
               .size = where.size(),
               .on = {},
               .memory_of = nullptr,
               .nowhere = to.is_nowhere(),
               .backlog = nullptr};
    if (at.kind == memory_kind::device && at.size > 0) {
        auto const place = place_of(at.address);
        at.on = {.ordinal = place.ordinal, .stream = to.stream()};
        at.memory_of = place.context;
        auto const refused = at.on.ordinal == no_gpu ? error_code{errc::bad_destination} : resolve(at.on);
        if (!refused)
            at.backlog = backlog_of(at.on);
        if (!code)
            code = refused;
    }
    return at;
}

asio::any_io_executor without_strands(asio::any_io_executor const& executor)
{
    if (auto const* const erased = executor.target<asio::strand<asio::any_io_executor>>())
        return without_strands(erased->get_inner_executor());
    if (auto const* const known = executor.target<asio::strand<asio::io_context::executor_type>>())
        return known->get_inner_executor();
    if (auto const* const of_pool = executor.target<asio::strand<asio::thread_pool::executor_type>>())
        return of_pool->get_inner_executor();
    return executor;
}

}  // namespace

receiver_state::receiver_state(asio::any_io_executor const& executor, std::shared_ptr<session_state> session,
                               bool of_part)
    : executor_{executor},
      io_executor_{without_strands(executor)},
      has_no_strand_{io_executor_ == executor_},
      session_{std::move(session)},
      of_part_{of_part},
      descriptors_{new descriptors{io_executor_}}
{}

receiver_state::~receiver_state()
{
    close();
    if (born_.is_here())
        return;
    for (int const fd : {socket_.native_handle(), wake_.native_handle()}) {
        if (fd >= 0)
            ::close(fd);
    }
}

void receiver_state::open(asio::ip::tcp::endpoint const& peer, error_code& code)
{
    begin_attempt("connect", to_string(peer));
    set_up(peer, code);
    end_attempt(code);
}

void receiver_state::begin_attempt(char const* operation, std::string object)
{
    failed_at_ = nullptr;
    why_ = {.operation = operation, .object = std::move(object), .kernel_message = {}, .advice = {}};
}

void receiver_state::end_attempt(error_code code)
{
    if (!code)
        why_.clear();
    else
        why_.advice = advice_on(code);
}

void receiver_state::set_up(asio::ip::tcp::endpoint const& peer, error_code& code)
{
    if (session_ == nullptr) {
        code = asio::error::bad_descriptor;
        return;
    }
    auto place = session_->admit(code);
    if (code)
        return;
    auto socket = open_tcp(peer, code);
    if (code)
        return;
    session_->size_receive_buffer(socket.get(), code);
    if (code)
        return;
    auto const steers = session_->transport() != transport::copy;
    auto const local = steers ? bind_towards(socket.get(), peer, code) : asio::ip::tcp::endpoint{};
    if (code)
        return;
    take_over(std::move(socket), std::move(place), peer.protocol(), code);
    if (!code && steers)
        steer(local, peer, code);
    if (code)
        close();
}

void receiver_state::steer(asio::ip::tcp::endpoint const& local, asio::ip::tcp::endpoint const& peer, error_code& code)
{
    auto asked = session_->steer_flow(socket_.native_handle(), local, peer, code);
    if (code)
        return;
    auto second = duplicate(asked->event.get(), code);
    if (!code)
        wake_.assign(second.get(), code);
    if (code)
        return;
    static_cast<void>(second.release());
    steering_ = std::move(asked);
}

bool receiver_state::is_steered() const noexcept
{
    return steering_->done.load(std::memory_order_acquire);
}

error_code receiver_state::steered(asio::ip::tcp::endpoint const& peer, error_code code)
{
    auto const asked = std::exchange(steering_, nullptr);
    error_code ignored;
    wake_.close(ignored);
    if (was_cancelled() && !code)
        code = asio::error::operation_aborted;
    if (!code && asked->done.load(std::memory_order_acquire)) {
        if (!asked->code) {
            flow_->place().keep(std::move(asked->rule));
            return {};
        }
        why_ = std::move(asked->why);
        why_.object += fmt::format(" ({} to {})", to_string(asked->local), to_string(asked->remote));
        close();
        return asked->code;
    }
    if (!code)
        code = asio::error::operation_aborted;
    connected(peer, code);
    return code;
}

void receiver_state::connected(asio::ip::tcp::endpoint const& peer, error_code code)
{
    if (!code) {
        connected_ = true;
        return;
    }
    error_code unbound;
    auto const local = socket_.local_endpoint(unbound);
    begin_attempt("connect", unbound ? to_string(peer) : fmt::format("{} to {}", to_string(local), to_string(peer)));
    end_attempt(code);
    close();
}

void receiver_state::refused(asio::ip::tcp::endpoint const& peer, error_code code)
{
    begin_attempt("connect", to_string(peer));
    end_attempt(code);
}

void receiver_state::adopt(asio::ip::tcp::socket accepted, asio::const_buffer received, error_code& code)
{
    begin_attempt("adopt", "connection");
    move_in(std::move(accepted), received, code);
    end_attempt(code);
}

void receiver_state::move_in(asio::ip::tcp::socket accepted, asio::const_buffer received, error_code& code)
{
    auto const peer = accepted.remote_endpoint(code);
    if (code)
        return;
    why_.object = fmt::format("connection of {}", to_string(peer));
    if (session_ == nullptr)
        code = asio::error::bad_descriptor;
    unique_fd socket{code ? -1 : accepted.release(code)};
    if (socket)
        ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);  // which Asio's accept leaves out
    if (!code)
        move_in(socket, peer.protocol(), *session_, session_->first(), code);
    if (!code && received.size() > 0)
        carried_.push(flow_->wrap({static_cast<std::byte const*>(received.data()), received.size()}, code));
    if (code)
        close();
}

void receiver_state::adopt(unique_fd& accepted, asio::ip::tcp const& protocol,
                           std::shared_ptr<session_state> const& session,
                           std::shared_ptr<session_state> const& arrives_in, error_code& code)
{
    begin_attempt("adopt", "connection");
    move_in(accepted, protocol, *session, arrives_in, code);
    end_attempt(code);
}

void receiver_state::move_in(unique_fd& accepted, asio::ip::tcp const& protocol, session_state& session,
                             std::shared_ptr<session_state> const& arrives_in, error_code& code)
{
    auto place = session.admit(code);
    if (!code)
        session.size_receive_buffer(accepted.get(), code);
    if (!code)
        take_over(std::move(accepted), std::move(place), protocol, code);
    connected_ = !code;
    if (!code && arrives_in.get() != &session)
        session.move_here(flow_->place(), flow_->socket(), arrives_in);
}

// All that can fail comes first, and all of it is undone if it does.
void receiver_state::take_over(unique_fd socket, std::unique_ptr<flow_place> place, asio::ip::tcp const& protocol,
                               error_code& code)
{
    std::shared_ptr<flow> made;
    try {
        made = std::make_shared<flow>(std::move(place), std::move(socket));
    } catch (system_error const& failure) {
        code = failure.code();
        return;
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
        return;
    }
    auto second = duplicate(made->socket(), code);
    if (code)
        return;
    socket_.assign(protocol, second.get(), code);
    if (code)
        return;
    static_cast<void>(second.release());
    flow_ = std::move(made);
    connected_ = false;
    over_.clear();
}

void receiver_state::close() noexcept
{
    if (flow_ == nullptr)
        return;
    while (!carried_.empty())
        flow_->give_back(carried_.pop());
    if (!born_.is_here())
        return forget();
    steering_.reset();
    flow_->place().set_waiting(flow_wait::nothing);
    // A running read reports the bytes that it has placed so far.
    std::size_t lost = 0;
    static_cast<void>(flow_->finish(lost));
    flow_->shut_down();
    error_code ignored;
    socket_.close(ignored);
    wake_.close(ignored);
    ended_ = flow_->stats();
    flow_.reset();
    connected_ = false;
}

// Closes in a child that was forked. Asio's socket goes on to name a descriptor: one that is no connection.
void receiver_state::forget() noexcept
{
    ::dup2(flow_->wake_fd(), socket_.native_handle());
    steering_.reset();
    ended_ = flow_->stats();
    flow_.reset();
    connected_ = false;
}

diagnostics receiver_state::why() const
{
    return failed_at_ == nullptr ? why_ : why_not(failed_at_, failed_with_);
}

diagnostics receiver_state::why_not(char const* operation, error_code code) const
{
    error_code gone;
    auto const peer = socket_.remote_endpoint(gone);
    return {.operation = operation,
            .object = gone ? "connection" : fmt::format("connection of {}", to_string(peer)),
            .kernel_message = {},
            .advice = operation == std::string_view{read_fsm::operation} ? advice_on_read(code) : advice_on(code)};
}

void receiver_state::abandon() noexcept
{
    ++closings_;
    close();
}

std::size_t receiver_state::available(error_code& code) const
{
    auto const queued = socket_.available(code);
    return code ? 0 : queued + carried_.bytes();
}

void receiver_state::cancel() noexcept
{
    if (!born_.is_here())
        return;
    ++cancels_;
    error_code ignored;
    socket_.cancel(ignored);
    wake_.cancel(ignored);
}

landing receiver_state::land_on(destinations_ref to, std::size_t& size, error_code& code)
{
    landings_.clear();
    next_landing_ = 0;
    size = 0;
    landing first;
    // Bytes in the memory of no GPU get to one without kernels.
    auto const gathers = flow_ != nullptr && flow_->place().session().memory().ordinal() != no_gpu;
    bool overflows = false;
    try {
        to.for_each([&](destination const& one) {
            auto const at = landing_on(one, code);
            overflows = __builtin_add_overflow(size, at.size, &size) || overflows;
            if (gathers && !code && at.on.ordinal != no_gpu)
                prepare_gather(at.on);
            if (first.size == 0)
                first = at;
            else if (at.size > 0)
                landings_.push_back(at);
        });
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
    }
    if (!overflows)
        return first;
    size = std::numeric_limits<std::size_t>::max();  // what is refused is not empty
    if (!code)
        code = asio::error::invalid_argument;
    return first;
}

void receiver_state::move_on(landing& destination, std::size_t bytes) noexcept
{
    destination.address += bytes;
    destination.size -= bytes;
    if (destination.size == 0 && next_landing_ < landings_.size())
        destination = landings_[next_landing_++];
}

void receiver_state::note_end(error_code code) noexcept
{
    over_ = end_of_stream(code, flow_->place().locked_up());
}

bool receiver_state::make_room(error_code& code) noexcept
{
    try {
        carried_.make_room();
        return true;
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
        return false;
    }
}

stream_result receiver_state::place(landing const& destination, std::size_t size) noexcept
{
    stream_result result;
    auto& batch = carried_.front();
    if (destination.nowhere) {
        result.bytes = std::min(size, batch.bytes);
        flow_->take_front(batch, result.bytes);
    } else if (destination.kind == memory_kind::device) {
        memory_span const span{destination.kind, destination.address, size};
        gather_source const from{.memory = flow_->place().session().memory().known_to(destination.on.ordinal),
                                 .destination_of = destination.memory_of,
                                 .read_until = &batch.read_until,
                                 .backlog = destination.backlog};
        result.bytes = gather_on_gpu(batch.remaining(), span, destination.on, from, result.code);
        flow_->take_front(batch, result.bytes);
    } else if (is_on_host(batch, size)) {
        flow_->acquire_for_cpu(batch);
        result.bytes = copy_front(batch, destination.on_host(), size);
        flow_->take_front(batch, result.bytes);
    } else {
        result.bytes = copy_from_gpu(batch.remaining(), {destination.on_host(), size}, flow_->reading_gpu(batch),
                                     nullptr, result.code);
        flow_->take_front(batch, result.bytes);
    }
    if (batch.bytes == 0)
        flow_->give_back(carried_.pop());
    return result;
}

bool receiver_state::arrange_wake(stream_action const& wait, landing const& destination) noexcept
{
    auto const [lack, waits_for] = lacking(wait.kind);
    auto const of_stream = wait.kind == stream_action::what::wait_streams && destination.backlog != nullptr &&
                           flow_->notify_of(*destination.backlog);
    if (!of_stream && !flow_->notify_of(lack, wait.bytes))
        return false;
    // The last part of what is carried may have come back before anybody was told of the wait.
    if (wait.kind == stream_action::what::wait_budget && !carried_.empty() && flow_->discount(carried_.front()))
        return false;
    flow_->place().counters.loan_waits.add(1);
    flow_->place().set_waiting(waits_for);
    return true;
}

bool receiver_state::prepare_wait(stream_action const& wait, landing const& destination, error_code& code) noexcept
{
    auto const kind = wait.kind;
    auto& place = flow_->place();
    if (kind == stream_action::what::wait_readable) {
        place.counters.waits.add(1);
        place.set_waiting(flow_wait::data);
    } else {
        if (!wake_.is_open()) {
            auto second = duplicate(flow_->wake_fd(), code);
            if (!code)
                wake_.assign(second.get(), code);
            if (code)
                return false;
            static_cast<void>(second.release());
        }
        if (!arrange_wake(wait, destination))
            return false;
    }
    waiting_for_ = kind;
    return true;
}

}  // namespace gpurx::detail
