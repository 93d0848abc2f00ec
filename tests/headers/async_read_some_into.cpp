// SPDX-License-Identifier: Apache-2.0
//
// An async_read_some into an OBJECT, as async_read_into.cpp has it.
#include <array>
#include <gpurx/receiver.hpp>
#include <vector>

using object_type = OBJECT;

boost::asio::awaitable<void> read_into(gpurx::receiver& from, object_type& object);

boost::asio::awaitable<void> read_into(gpurx::receiver& from, object_type& object)
{
    co_await from.async_read_some(object);
}
