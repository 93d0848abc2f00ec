// SPDX-License-Identifier: Apache-2.0
#include "receiver_state.hpp"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <utility>

#include "tcp_socket.hpp"

namespace gpurx::detail {

receiver_state::receiver_state(asio::any_io_executor const& executor, std::shared_ptr<session_state> session)
    : session_{std::move(session)}, socket_{executor}, wake_{executor}
{}

receiver_state::~receiver_state()
{
    close();
}

void receiver_state::open(asio::ip::tcp::endpoint const& peer, error_code& code)
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
    if (session_->transport() != transport::copy) {
        auto const local = bind_towards(socket.get(), peer, code);
        if (code)
            return;
        diagnostics why;
        session_->steer_flow(*place, local, peer, code, why);
        if (code)
            return;
    }
    take_over(std::move(socket), std::move(place), peer.protocol(), code);
}

void receiver_state::adopt(asio::ip::tcp::socket accepted, asio::const_buffer received, error_code& code)
{
    if (session_ == nullptr) {
        code = asio::error::bad_descriptor;
        return;
    }
    auto const protocol = accepted.remote_endpoint(code).protocol();
    if (code)
        return;
    auto place = session_->admit(code);
    if (code)
        return;
    unique_fd socket{accepted.release(code)};
    if (code)
        return;
    session_->size_receive_buffer(socket.get(), code);
    if (code)
        return;
    take_over(std::move(socket), std::move(place), protocol, code);
    if (!code && received.size() > 0)
        carried_ = flow_->wrap({static_cast<std::byte const*>(received.data()), received.size()}, code);
    connected_ = !code;
    if (code)
        close();
}

void receiver_state::adopt(unique_fd& accepted, asio::ip::tcp const& protocol, error_code& code)
{
    if (session_ == nullptr) {
        code = asio::error::bad_descriptor;
        return;
    }
    auto place = session_->admit(code);
    if (!code)
        session_->size_receive_buffer(accepted.get(), code);
    if (!code)
        take_over(std::move(accepted), std::move(place), protocol, code);
    connected_ = !code;
}

void receiver_state::take_over(unique_fd socket, std::unique_ptr<session_flow> place, asio::ip::tcp const& protocol,
                               error_code& code)
{
    auto second = duplicate(socket.get(), code);
    if (code)
        return;
    socket_.assign(protocol, second.get(), code);
    if (code)
        return;
    static_cast<void>(second.release());
    flow_ = std::make_shared<flow>(std::move(place), std::move(socket));
    connected_ = false;
    over_.clear();
}

void receiver_state::close() noexcept
{
    if (flow_ == nullptr)
        return;
    if (carried_ != nullptr)
        flow_->give_back(std::move(carried_));
    flow_->place().set_waiting(false);
    flow_->shut_down();
    error_code ignored;
    socket_.close(ignored);
    wake_.close(ignored);
    ended_ = flow_->stats();
    flow_.reset();
    connected_ = false;
}

void receiver_state::abandon() noexcept
{
    ++closings_;
    close();
}

std::size_t receiver_state::available(error_code& code) const
{
    auto const queued = socket_.available(code);
    return code ? 0 : queued + (carried_ == nullptr ? 0 : carried_->bytes);
}

void receiver_state::cancel() noexcept
{
    cancelled_ = busy_;
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
    to.for_each([&](destination const& one) {
        auto const at = landing_on(one, code);
        size += at.size;
        if (first.size == 0)
            first = at;
        else if (at.size > 0)
            landings_.push_back(at);
    });
    return first;
}

void receiver_state::move_on(landing& destination, std::size_t bytes) noexcept
{
    destination.address += bytes;
    destination.size -= bytes;
    if (destination.size == 0 && next_landing_ < landings_.size())
        destination = landings_[next_landing_++];
}

stream_facts receiver_state::facts() const noexcept
{
    if (flow_ == nullptr)
        return {};
    return {
        .open = connected_,
        .carried = carried_ == nullptr ? 0 : carried_->bytes,
        .loan_budget = flow_->loan_budget(),
        .loan_limit = flow_->loan_limit(),
        .over = over_,
    };
}

stream_result receiver_state::perform(stream_action const& action, landing const& destination) noexcept
{
    stream_result result;
    if (action.kind == stream_action::what::place)
        return place(destination, std::min(action.bytes, destination.size));
    if (action.kind == stream_action::what::receive)
        carried_ = flow_->receive(action.bytes, result.code);
    else
        result.bytes = flow_->receive_into(destination, std::min(action.bytes, destination.size), result.code);
    over_ = end_of_stream(result.code, flow_->place().locked_up());
    return result;
}

stream_result receiver_state::place(landing const& destination, std::size_t size) noexcept
{
    stream_result result;
    if (destination.nowhere) {
        result.bytes = std::min(size, carried_->bytes);
        drop(*carried_, result.bytes);
    } else if (destination.kind == memory_kind::device) {
        device_span const span{destination.kind, destination.address, size};
        result.bytes = gather_on_gpu(carried_->remaining(), span, destination.on, result.code);
        mark(carried_->read_until, destination.on);
        drop(*carried_, result.bytes);
    } else if (is_on_host(*carried_, size)) {
        flow_->acquire_for_cpu(*carried_);
        result.bytes = consume(*carried_, destination.on_host(), size);
    } else {
        result.bytes = copy_from_gpu(carried_->remaining(), {destination.on_host(), size},
                                     flow_->reading_gpu(*carried_), nullptr, result.code);
        drop(*carried_, result.bytes);
    }
    if (carried_->bytes == 0)
        flow_->give_back(std::move(carried_));
    return result;
}

bool receiver_state::prepare_wait(stream_action::what kind, error_code& code) noexcept
{
    auto& counters = flow_->place().counters;
    if (kind == stream_action::what::wait_readable) {
        counters.waits.add(1);
        flow_->place().set_waiting(true);
    } else {
        auto const lack = kind == stream_action::what::wait_pages ? flow::lack::pages : flow::lack::budget;
        if (!wake_.is_open()) {
            auto second = duplicate(flow_->wake_fd(), code);
            if (!code)
                wake_.assign(second.get(), code);
            if (code)
                return false;
            static_cast<void>(second.release());
        }
        if (!flow_->notify_of(lack))
            return false;
        counters.loan_waits.add(1);
    }
    waiting_for_ = kind;
    return true;
}

void receiver_state::after_wait() noexcept
{
    auto const what = std::exchange(waiting_for_, stream_action::what::done);
    if (flow_ == nullptr || what == stream_action::what::done)
        return;
    if (what == stream_action::what::wait_readable)
        flow_->place().set_waiting(false);
    else
        flow_->drain_wake();
}

}  // namespace gpurx::detail
