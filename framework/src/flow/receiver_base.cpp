// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/error.hpp>
#include <gpurx/receiver_base.hpp>
#include <utility>

#include "receiver_state.hpp"
#include "session/session_access.hpp"

namespace gpurx {

receiver_base::receiver_base(asio::any_io_executor executor, rx_session& session)
    : executor_{std::move(executor)},
      state_{std::make_shared<detail::receiver_state>(executor_, detail::session_access::state(session))}
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
    check("count what can be received from", code);
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

}  // namespace detail

}  // namespace gpurx
