// SPDX-License-Identifier: Apache-2.0
//
// An async_read into an OBJECT. Built by tests that look at what the compiler says: most of them must not compile.
#include <array>
#include <gpurx/read.hpp>
#include <gpurx/receiver.hpp>
#include <vector>

using object_type = OBJECT;

boost::asio::awaitable<void> read_into(gpurx::receiver& from, object_type& object);

boost::asio::awaitable<void> read_into(gpurx::receiver& from, object_type& object)
{
    co_await gpurx::async_read(from, object);
}
