// SPDX-License-Identifier: Apache-2.0
//
// The handle of a connection, and how it connects.
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/error.hpp>
#include <memory>
#include <utility>

#include <gpurx/detail/receiver_base.hpp>
#include <gpurx/receiver.hpp>

#include "base/async_op.hpp"
#include "base/failure.hpp"
#include "receiver_state.hpp"
#include "session/session_state.hpp"

namespace gpurx {

receiver_base::receiver_base(asio::any_io_executor executor, rx_session& session)
    : executor_{std::move(executor)},
      state_{std::make_shared<detail::receiver_state>(executor_, detail::session_access::state(session),
                                                      detail::session_access::is_part(session))}
{}

receiver_base::receiver_base(asio::any_io_executor executor, std::shared_ptr<detail::receiver_state> state) noexcept
    : executor_{std::move(executor)}, state_{std::move(state)}
{}

receiver_base::receiver_base(receiver_base&& other) noexcept : receiver_base{other.executor_, std::move(other.state_)}
{}

receiver_base& receiver_base::operator=(receiver_base&& other) noexcept
{
    if (this != &other) {
        close();
        executor_ = other.executor_;
        state_ = std::move(other.state_);
    }
    return *this;
}

receiver_base::~receiver_base()
{
    close();
}

std::shared_ptr<detail::receiver_state> const& receiver_base::state()
{
    if (state_ == nullptr)
        state_ = std::make_shared<detail::receiver_state>(executor_, nullptr);
    return state_;
}

bool receiver_base::is_open() const noexcept
{
    return state_ != nullptr && state_->is_open();
}

void receiver_base::assign(asio::ip::tcp::socket accepted, asio::const_buffer received)
{
    error_code code;
    assign(std::move(accepted), received, code);
    if (code)
        throw system_error{code, why()};
}

void receiver_base::assign(asio::ip::tcp::socket accepted, error_code& code)
{
    assign(std::move(accepted), {}, code);
}

void receiver_base::assign(asio::ip::tcp::socket accepted, asio::const_buffer received, error_code& code)
{
    code.clear();
    auto& own = shared_state();
    if (!own.is_open() && !own.is_busy())
        return own.adopt(std::move(accepted), received, code);
    code = own.is_open() ? error_code{asio::error::already_open} : error_code{errc::already_running};
    own.failed("adopt for", code);
}

void receiver_base::close() noexcept
{
    if (state_ != nullptr)
        state_->abandon();
}

void receiver_base::cancel() noexcept
{
    if (state_ != nullptr)
        state_->cancel();
}

void receiver_base::shutdown(asio::socket_base::shutdown_type what)
{
    error_code code;
    shutdown(what, code);
    check("shut down", code);
}

void receiver_base::shutdown(asio::socket_base::shutdown_type what, error_code& code)
{
    shared_state().socket().shutdown(what, code);
}

std::size_t receiver_base::available() const
{
    error_code code;
    auto const bytes = available(code);
    check("count queued bytes of", code);
    return bytes;
}

std::size_t receiver_base::available(error_code& code) const
{
    code.clear();
    return is_open() ? state_->available(code) : 0;
}

asio::ip::tcp::endpoint receiver_base::local_endpoint() const
{
    error_code code;
    auto endpoint = local_endpoint(code);
    check("get local endpoint of", code);
    return endpoint;
}

asio::ip::tcp::endpoint receiver_base::local_endpoint(error_code& code) const
{
    code = asio::error::bad_descriptor;
    return state_ == nullptr ? asio::ip::tcp::endpoint{} : state_->socket().local_endpoint(code);
}

asio::ip::tcp::endpoint receiver_base::remote_endpoint() const
{
    error_code code;
    auto endpoint = remote_endpoint(code);
    check("get remote endpoint of", code);
    return endpoint;
}

asio::ip::tcp::endpoint receiver_base::remote_endpoint(error_code& code) const
{
    code = asio::error::bad_descriptor;
    return state_ == nullptr ? asio::ip::tcp::endpoint{} : state_->socket().remote_endpoint(code);
}

int receiver_base::native_handle() const noexcept
{
    return is_open() ? state_->socket().native_handle() : -1;
}

gpurx::stats receiver_base::stats() const noexcept
{
    return state_ == nullptr ? gpurx::stats{} : state_->stats();
}

diagnostics receiver_base::why() const
{
    return state_ == nullptr ? diagnostics{} : state_->why();
}

void receiver_base::check(char const* operation, error_code code) const
{
    if (!code)
        return;
    if (state_ == nullptr)
        throw system_error{code, {.operation = operation, .object = "connection", .kernel_message = {}, .advice = {}}};
    state_->failed(operation, code);
    throw system_error{code, state_->why()};
}

namespace detail {

asio::ip::tcp::socket& socket_of(receiver_state& state) noexcept
{
    return state.socket();
}

void start_write(receiver_state& state, send_buffers const& data, completion_site const& site,
                 asio::any_io_executor const& own, read_handler handler)
{
    auto const send_on = [&](auto const& executor) {
        state.socket().async_write_some(data, asio::bind_executor(executor, std::move(handler)));
    };
    if (site.strand != nullptr)
        send_on(*site.strand);
    else if (site.is_known)
        send_on(site.or_else(own));
    else
        send_on(asio::get_associated_executor(handler, own));
}

std::exception_ptr failure_of(std::shared_ptr<receiver_state> const& state, error_code code) noexcept
{
    return exception_of(code, [&] { return state->why(); });
}

std::exception_ptr failure_of(receiver_state const& state, transfer kind, error_code code) noexcept
{
    auto const* const operation = kind == transfer::receive ? receive_fsm::operation
                                  : kind == transfer::read  ? read_fsm::operation
                                                            : "write to";
    return exception_of(code, [&] { return state.why_not(operation, code); });
}

}  // namespace detail

}  // namespace gpurx

namespace gpurx::detail {

namespace {

class connect_op : public async_op<receiver_state::claim, error_code> {
  public:
    static void start(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint const& peer, completion_site site,
                      connect_handler handler)
    {
        connect_op{std::move(state), peer, std::move(site), std::move(handler)}.begin();
    }

    // There is a rule, or the connection stands; or they will not. Asio may call without a cause.
    void operator()(error_code code)
    {
        auto const cancelled = end_wait() != asio::cancellation_type::none || state().was_cancelled();
        if (!state().is_open()) {
            state().refused(peer_, code = asio::error::operation_aborted);
        } else if (state().is_steering()) {
            if (cancelled && !code)
                code = asio::error::operation_aborted;
            if (!code && !state().is_steered())
                return await_rule();
            code = state().steered(peer_, code);
            if (!code)
                return connect();
        } else {
            state().connected(peer_, code);
        }
        complete(code);
    }

  private:
    connect_op(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint peer, completion_site site,
               connect_handler handler) noexcept
        : async_op{receiver_state::claim{std::move(state)}, std::move(site), std::move(handler)}, peer_{std::move(peer)}
    {}

    [[nodiscard]] receiver_state& state() const noexcept { return claim().state(); }

    void begin()
    {
        if (auto const code = prepare())
            return complete_soon(code);
        heed_cancellation(asio::enable_partial_cancellation());
        if (state().is_steering())
            await_rule();
        else
            connect();
    }

    void await_rule()
    {
        auto& to = state();  // lives on in what *this is moved to
        to.await_rule(std::move(*this));
    }

    void connect()
    {
        auto& socket = state().socket();
        auto const peer = peer_;
        socket.async_connect(peer, std::move(*this));
    }

    error_code prepare()
    {
        if (!claim().granted()) {
            state().failed("connect", errc::already_running);
            return errc::already_running;
        }
        error_code code;
        if (state().is_open())
            state().refused(peer_, code = asio::error::already_connected);
        else
            state().open(peer_, code);
        return code;
    }

    asio::ip::tcp::endpoint peer_;
};

// async_connect of many holds this between its attempts: nothing that keeps others from using the receiver.
class bystander {
  public:
    explicit bystander(std::shared_ptr<receiver_state> state) noexcept
        : state_{std::move(state)}, cancels_{state_->cancels()}, closings_{state_->closings()}
    {}

    [[nodiscard]] std::shared_ptr<receiver_state> const& state() const noexcept { return state_; }
    [[nodiscard]] asio::any_io_executor get_executor() const { return state_->get_executor(); }
    // The receiver was cancelled; or was closed or is gone: it must not come to life again.
    [[nodiscard]] bool is_unwanted() const noexcept
    {
        return state_->cancels() != cancels_ || state_->closings() != closings_;
    }
    void release() noexcept { state_.reset(); }

  private:
    std::shared_ptr<receiver_state> state_;
    unsigned cancels_;
    unsigned closings_;
};

// One async_connect after the other.
class connect_each_op : public async_op<bystander, error_code, asio::ip::tcp::endpoint> {
  public:
    using endpoints = std::vector<asio::ip::tcp::endpoint>;

    static void start(std::shared_ptr<receiver_state> state, endpoints peers, completion_site site,
                      connect_each_handler handler)
    {
        connect_each_op{std::move(state), std::move(peers), std::move(site), std::move(handler)}.begin();
    }

    // One has answered, or will not.
    void operator()(error_code code)
    {
        auto const cancelled = end_wait();
        if (!code)
            return complete(code, peers_[next_ - 1]);
        if (cancelled != asio::cancellation_type::none || claim().is_unwanted())
            code = asio::error::operation_aborted;
        if (next_ == peers_.size() || is_final(code))
            return complete(code, {});
        attempt();
    }

  private:
    connect_each_op(std::shared_ptr<receiver_state> state, endpoints peers, completion_site site,
                    connect_each_handler handler) noexcept
        : async_op{bystander{std::move(state)}, std::move(site), std::move(handler)}, peers_{std::move(peers)}
    {}

    void begin()
    {
        if (peers_.empty())
            return refuse(asio::error::not_found);
        if (claim().state()->is_open())
            return refuse(asio::error::already_connected);
        heed_cancellation(asio::enable_partial_cancellation());
        attempt();
    }
    void refuse(error_code code)
    {
        claim().state()->failed("connect", code);
        complete_soon(code, {});
    }
    void attempt()
    {
        auto const peer = peers_[next_++];
        auto state = claim().state();
        auto site = site_of(*this, state->get_executor());
        start_connect(std::move(state), peer, std::move(site), std::move(*this));
    }
    // No answer of the peer's, and no other would answer otherwise.
    [[nodiscard]] static bool is_final(error_code code) noexcept
    {
        return code == asio::error::operation_aborted || code == asio::error::already_connected ||
               code == errc::already_running || code == errc::too_many_flows;
    }

    endpoints peers_;
    std::size_t next_ = 0;
};

}  // namespace

void start_connect(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint peer, completion_site site,
                   connect_handler handler)
{
    connect_op::start(std::move(state), peer, std::move(site), std::move(handler));
}

void start_connect_each(std::shared_ptr<receiver_state> state, std::vector<asio::ip::tcp::endpoint> peers,
                        completion_site site, connect_each_handler handler)
{
    connect_each_op::start(std::move(state), std::move(peers), std::move(site), std::move(handler));
}

}  // namespace gpurx::detail
