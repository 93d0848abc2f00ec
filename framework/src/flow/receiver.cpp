// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/compose.hpp>
#include <boost/asio/error.hpp>
#include <gpurx/receiver.hpp>

#include "receive_fsm.hpp"
#include "session_access.hpp"
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

class connect_op {
  public:
    connect_op(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint peer) noexcept
        : claim_{std::move(state)}, peer_{std::move(peer)}
    {}

    template <class Self>
    void operator()(Self& self, error_code code = {})
    {
        switch (std::exchange(at_, point::connecting)) {
            case point::start:
                self.reset_cancellation_state(asio::enable_partial_cancellation());
                code_ = begin();
                if (!code_)
                    return claim_.state().socket().async_connect(peer_, std::move(self));
                at_ = point::refused;
                return complete_soon(self);
            case point::connecting:
                code_ = finish(code);
                [[fallthrough]];
            case point::refused:
                claim_.release();
                return self.complete(code_);
        }
    }

  private:
    enum class point : std::uint8_t { start, connecting, refused };

    error_code begin()
    {
        if (!claim_.granted())
            return errc::already_running;
        if (claim_.state().is_open())
            return asio::error::already_connected;
        error_code code;
        claim_.state().open(peer_, code);
        return code;
    }

    error_code finish(error_code code)
    {
        auto& state = claim_.state();
        if (!state.is_open())
            return asio::error::operation_aborted;
        if (code)
            state.close();
        else
            state.connected();
        return code;
    }

    receiver_state::claim claim_;
    asio::ip::tcp::endpoint peer_;
    point at_ = point::start;
    error_code code_;
};

}  // namespace

void start_connect(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint peer, connect_handler handler)
{
    auto const executor = state->get_executor();
    asio::async_compose<connect_handler, void(error_code)>(connect_op{std::move(state), std::move(peer)}, handler,
                                                           executor);
}

void start_receive(std::shared_ptr<receiver_state> state, receive_handler handler)
{
    auto const executor = state->get_executor();
    asio::async_compose<receive_handler, void(error_code, rx_buffer)>(
        stream_op<receive_fsm, lent>{std::move(state), receive_fsm{}, nullptr}, handler, executor);
}

}  // namespace detail

namespace {

[[noreturn]] void refuse(error_code code, char const* operation, char const* advice)
{
    throw system_error{code, {.operation = operation, .object = "receiver", .kernel_message = {}, .advice = advice}};
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
        refuse(code, "adopt a connection",
               code == errc::too_many_flows ? "close a flow, or raise rx_session_options::max_flows" : "");
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
    auto const endpoint = state_->socket().local_endpoint(code);
    if (code)
        refuse(code, "local endpoint", "");
    return endpoint;
}

asio::ip::tcp::endpoint receiver::remote_endpoint() const
{
    error_code code;
    auto const endpoint = state_->socket().remote_endpoint(code);
    if (code)
        refuse(code, "remote endpoint", "");
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
