// SPDX-License-Identifier: Apache-2.0
#include <gpurx/read.hpp>

#include "read_fsm.hpp"
#include "stream_op.hpp"

namespace gpurx::detail {

namespace {

struct placed {
    using type = std::size_t;
    static std::size_t collect(receiver_state& /*from*/, stream_action const& done) noexcept { return done.bytes; }
};

}  // namespace

landing landing_on(destination const& to, error_code& code) noexcept
{
    auto const where = to.where();
    landing at{
        .kind = where.kind(), .address = where.address(), .size = where.size(), .on = {}, .nowhere = to.is_nowhere()};
    if (at.kind == memory_kind::device && at.size > 0) {
        at.on = {.ordinal = gpu_of(at.address), .stream = to.stream()};
        auto const refused = at.on.ordinal == no_gpu ? error_code{errc::bad_destination} : resolve(at.on);
        if (!code)
            code = refused;
    }
    return at;
}

void start_read(std::shared_ptr<receiver_state> state, destinations_ref to, read_until enough, completion_site site,
                read_handler handler)
{
    landing first;
    std::size_t size = 0;
    error_code refused;
    if (!state->is_busy())
        first = state->land_on(to, size, refused);
    auto const way = state->writes_in_place() ? read_fsm::way::in_place : read_fsm::way::place;
    read_fsm const machine{size, way, refused, enough == read_until::full ? size : 1};
    stream_op<read_op, placed>::start(std::move(state), machine, first, std::move(site), std::move(handler));
}

}  // namespace gpurx::detail
