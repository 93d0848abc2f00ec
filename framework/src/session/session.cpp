// SPDX-License-Identifier: Apache-2.0
#include <gpurx/session.hpp>
#include <new>
#include <utility>

#include "nic/nic_claim.hpp"
#include "session_access.hpp"
#include "session_state.hpp"

namespace gpurx {

std::string_view to_string(transport value) noexcept
{
    switch (value) {
        case transport::automatic:
            return "automatic";
        case transport::devmem:
            return "devmem";
        case transport::copy:
            return "copy";
    }
    return "unknown";
}

std::string_view to_string(token_kind value) noexcept
{
    switch (value) {
        case token_kind::automatic:
            return "automatic";
        case token_kind::array:
            return "array";
        case token_kind::xarray:
            return "xarray";
    }
    return "unknown";
}

rx_session::rx_session(rx_session_options options, device_memory memory)
    : state_{detail::session_state::open(std::move(options), detail::session_access::state(std::move(memory)))}
{}

std::optional<rx_session> rx_session::open(rx_session_options options, device_memory memory, error_code& code,
                                           diagnostics& why)
{
    try {
        code.clear();
        why.clear();
        return rx_session{std::move(options), std::move(memory)};
    } catch (system_error const& failure) {
        code = failure.code();
        why = failure.why();
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
        why = {.operation = "open", .object = "session", .kernel_message = {}, .advice = {}};
    }
    return std::nullopt;
}

rx_session::rx_session(std::shared_ptr<detail::session_state> state) noexcept : state_{std::move(state)} {}
rx_session::rx_session(rx_session&&) noexcept = default;

rx_session& rx_session::operator=(rx_session&& other) noexcept
{
    if (this != &other)
        rx_session const before{std::exchange(state_, std::move(other.state_))};
    return *this;
}

rx_session::~rx_session()
{
    auto const worker = state_ != nullptr ? state_->worker() : nullptr;
    state_.reset();
    if (worker != nullptr)
        worker->wait_if_finishing();
}

transport rx_session::transport() const noexcept
{
    return state_->transport();
}

std::string rx_session::explain() const
{
    return state_->explain();
}

stats rx_session::stats() const
{
    return state_->total();
}

device_memory const& rx_session::memory() const noexcept
{
    return state_->memory_handle();
}

std::vector<unsigned> rx_session::queues() const
{
    return state_->queues();
}

int rx_session::receive_buffer_size() const noexcept
{
    return state_->receive_buffer_size();
}

void rx_session::steer(asio::ip::tcp::acceptor& acceptor, error_code& code, diagnostics& why)
{
    state_->steer(acceptor, code, why);
}

void rx_session::steer(asio::ip::tcp::acceptor& acceptor)
{
    error_code code;
    diagnostics why;
    steer(acceptor, code, why);
    if (code)
        throw system_error{code, std::move(why)};
}

std::vector<std::string> rx_session::recover(std::string_view interface, std::string_view state_directory)
{
    return detail::nic_claim::recover(interface, state_directory);
}

}  // namespace gpurx
