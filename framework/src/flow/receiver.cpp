// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/error.hpp>
#include <gpurx/receiver.hpp>

#include "receive_fsm.hpp"
#include "session/session_access.hpp"
#include "stream_op.hpp"

namespace gpurx {

namespace detail {

namespace {

struct lent {
    using type = rx_buffer;
    static rx_buffer collect(receiver_state& from, stream_action const& done) noexcept
    {
        return done.code ? rx_buffer{} : from.lend_carried();
    }
};

class connect_op : public receiver_op<error_code> {
  public:
    static void start(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint const& peer, completion_site site,
                      connect_handler handler)
    {
        connect_op{std::move(state), peer, std::move(site), std::move(handler)}.begin();
    }

    // There is a rule, or the connection stands; or they will not.
    void operator()(error_code code)
    {
        auto const cancelled = end_wait() != asio::cancellation_type::none;
        if (!state().is_open()) {
            state().refused(peer_, code = asio::error::operation_aborted);
        } else if (state().is_steering()) {
            if (cancelled && !code)
                code = asio::error::operation_aborted;
            code = state().steered(peer_, code);
            if (!code)
                return connect();
        } else {
            state().connected(peer_, code);
        }
        complete(code);
    }

  private:
    connect_op(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint const& peer, completion_site site,
               connect_handler handler) noexcept
        : receiver_op{std::move(state), std::move(site), std::move(handler)}, peer_{peer}
    {}

    void begin()
    {
        if (auto const code = prepare())
            return complete_soon(code);
        heed_cancellation(asio::enable_partial_cancellation());
        auto& to = state();  // lives on in what *this is moved to
        if (to.is_steering())
            to.await_rule(std::move(*this));
        else
            connect();
    }

    void connect()
    {
        auto& socket = state().socket();
        auto const peer = peer_;
        socket.async_connect(peer, std::move(*this));
    }

    error_code prepare()
    {
        if (!granted())
            return errc::already_running;
        error_code code;
        if (state().is_open())
            state().refused(peer_, code = asio::error::already_connected);
        else
            state().open(peer_, code);
        return code;
    }

    asio::ip::tcp::endpoint peer_;
};

}  // namespace

void start_connect(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint peer, completion_site site,
                   connect_handler handler)
{
    connect_op::start(std::move(state), peer, std::move(site), std::move(handler));
}

void start_receive(std::shared_ptr<receiver_state> state, completion_site site, receive_handler handler)
{
    stream_op<receive_fsm, lent>::start(std::move(state), receive_fsm{}, landing{}, std::move(site),
                                        std::move(handler));
}

asio::ip::tcp::socket& socket_of(receiver_state& state) noexcept
{
    return state.socket();
}

}  // namespace detail

namespace {

[[noreturn]] void refuse(error_code code, char const* operation, char const* object, char const* advice)
{
    throw system_error{code, {.operation = operation, .object = object, .kernel_message = {}, .advice = advice}};
}

}  // namespace

receiver::receiver(executor_type executor, rx_session& session)
    : state_{std::make_shared<detail::receiver_state>(executor, detail::session_access::state(session))}
{}

receiver::receiver(executor_type executor, rx_session& session, asio::ip::tcp::socket accepted)
    : receiver{std::move(executor), session}
{
    error_code code;
    state_->adopt(std::move(accepted), code);
    if (code)
        throw system_error{code, state_->why()};
}

receiver::receiver(receiver&&) noexcept = default;

receiver& receiver::operator=(receiver&& other) noexcept
{
    if (this != &other) {
        close();
        state_ = std::move(other.state_);
    }
    return *this;
}

receiver::~receiver()
{
    close();
}

receiver::executor_type receiver::get_executor() const noexcept
{
    return state_->get_executor();
}

bool receiver::is_open() const noexcept
{
    return state_ != nullptr && state_->is_open();
}

void receiver::close() noexcept
{
    if (state_ != nullptr)
        state_->close();
}

asio::ip::tcp::endpoint receiver::local_endpoint() const
{
    error_code code;
    auto endpoint = state_->socket().local_endpoint(code);
    if (code)
        refuse(code, "get", "local endpoint", "");
    return endpoint;
}

asio::ip::tcp::endpoint receiver::remote_endpoint() const
{
    error_code code;
    auto endpoint = state_->socket().remote_endpoint(code);
    if (code)
        refuse(code, "get", "remote endpoint", "");
    return endpoint;
}

int receiver::native_handle() const noexcept
{
    return is_open() ? state_->socket().native_handle() : -1;
}

gpurx::stats receiver::stats() const noexcept
{
    return state_->stats();
}

}  // namespace gpurx
