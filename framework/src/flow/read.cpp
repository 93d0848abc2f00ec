// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/compose.hpp>
#include <gpurx/receiver.hpp>

#include "read_fsm.hpp"
#include "stream_op.hpp"

namespace gpurx::detail {

namespace {

struct placed {
    using type = std::size_t;
    static std::size_t collect(receiver_state& /*from*/, stream_action const& done) noexcept { return done.bytes; }
};

void start_read(std::shared_ptr<receiver_state> state, std::byte* destination, std::size_t size, read_fsm::way to,
                read_handler& handler)
{
    if (to == read_fsm::way::copy && state->writes_in_place())
        to = read_fsm::way::in_place;
    auto const executor = state->get_executor();
    asio::async_compose<read_handler, void(error_code, std::size_t)>(
        stream_op<read_fsm, placed>{std::move(state), read_fsm{size, to}, destination}, handler, executor);
}

}  // namespace

void start_read_host(std::shared_ptr<receiver_state> state, host_span destination, read_handler handler)
{
    start_read(std::move(state), destination.data(), destination.size(), read_fsm::way::copy, handler);
}

void start_read_device(std::shared_ptr<receiver_state> state, device_span destination, cuda_stream_ref /*stream*/,
                       read_handler handler)
{
    auto const reachable = destination.kind() == memory_kind::host;
    start_read(std::move(state), reinterpret_cast<std::byte*>(destination.address()), destination.size(),
               reachable ? read_fsm::way::copy : read_fsm::way::none, handler);
}

}  // namespace gpurx::detail
