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

struct request {
    std::size_t size;
    error_code refused;  // if the destination or its stream cannot be used
};

void start_read(std::shared_ptr<receiver_state> state, landing const& destination, request const& what,
                completion_site site, read_handler handler)
{
    auto const way = state->writes_in_place() ? read_fsm::way::in_place : read_fsm::way::place;
    read_fsm const machine{what.size, way, what.refused};
    stream_op<read_fsm, placed>::start(std::move(state), machine, destination, std::move(site), std::move(handler));
}

}  // namespace

void start_read_host(std::shared_ptr<receiver_state> state, host_span destination, completion_site site,
                     read_handler handler)
{
    landing const to{
        .kind = memory_kind::host, .address = reinterpret_cast<std::uintptr_t>(destination.data()), .on = {}};
    start_read(std::move(state), to, {destination.size(), {}}, std::move(site), std::move(handler));
}

void start_read_device(std::shared_ptr<receiver_state> state, device_span destination, cuda_stream_ref stream,
                       completion_site site, read_handler handler)
{
    landing to{.kind = destination.kind(), .address = destination.address(), .on = {}};
    error_code refused;
    if (to.kind == memory_kind::device) {
        to.on = {.ordinal = gpu_of(to.address), .stream = stream};
        refused = to.on.ordinal == no_gpu ? error_code{errc::bad_destination} : resolve(to.on);
    }
    start_read(std::move(state), to, {destination.size(), refused}, std::move(site), std::move(handler));
}

}  // namespace gpurx::detail
