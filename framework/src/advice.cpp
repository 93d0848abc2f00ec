// SPDX-License-Identifier: Apache-2.0
#include "advice.hpp"

#include <boost/asio/error.hpp>

namespace gpurx::detail {

char const* advice_on(error_code code) noexcept
{
    if (code == errc::too_many_flows)
        return "close a flow, or raise rx_session_options::max_flows";
    if (code == boost::system::errc::operation_not_supported)
        return "the session belongs to the process that this one was forked from: open one of your own";
    if (code == boost::system::errc::too_many_files_open)
        return "raise the limit of open files (ulimit -n)";
    if (code == asio::error::already_connected || code == asio::error::already_open)
        return "close the receiver first";
    if (code == asio::error::not_connected)
        return "connect, or assign an accepted connection, first";
    if (code == errc::already_running)
        return "wait for the operation that runs, or cancel it";
    if (code == errc::memory_locked_up)
        return "give more memory, or smaller receive buffers (rx_session_options::receive_memory)";
    if (code == errc::foreign_memory)
        return "find who changed the NIC's rules (ethtool -n)";
    if (code == errc::bad_destination)
        return "check the address and device_span::kind()";
    if (code == errc::wrong_gpu)
        return "use a stream of the GPU that the destination is on";
    if (code == errc::unusable_stream)
        return "use an ordinary stream, and none that is being captured";
    return "";
}

}  // namespace gpurx::detail
