// SPDX-License-Identifier: Apache-2.0
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
                completion_site site, read_handler handler)
{
    if (to == read_fsm::way::copy && state->writes_in_place())
        to = read_fsm::way::in_place;
    stream_op<read_fsm, placed>::start(std::move(state), read_fsm{size, to}, destination, std::move(site),
                                       std::move(handler));
}

}  // namespace

void start_read_host(std::shared_ptr<receiver_state> state, host_span destination, completion_site site,
                     read_handler handler)
{
    start_read(std::move(state), destination.data(), destination.size(), read_fsm::way::copy, std::move(site),
               std::move(handler));
}

void start_read_device(std::shared_ptr<receiver_state> state, device_span destination, cuda_stream_ref /*stream*/,
                       completion_site site, read_handler handler)
{
    auto const reachable = destination.kind() == memory_kind::host;
    start_read(std::move(state), reinterpret_cast<std::byte*>(destination.address()), destination.size(),
               reachable ? read_fsm::way::copy : read_fsm::way::none, std::move(site), std::move(handler));
}

}  // namespace gpurx::detail
