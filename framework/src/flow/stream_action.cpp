// SPDX-License-Identifier: Apache-2.0
#include "stream_action.hpp"

#include <boost/asio/error.hpp>

namespace gpurx::detail {

error_code end_of_stream(error_code met, bool locked_up) noexcept
{
    if (!met || met == asio::error::would_block || met == asio::error::no_buffer_space ||
        met == asio::error::no_memory || met.category() == cuda_category())
        return {};
    return locked_up ? make_error_code(errc::memory_locked_up) : met;
}

}  // namespace gpurx::detail
