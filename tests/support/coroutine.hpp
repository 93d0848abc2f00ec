// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <exception>
#include <utility>

#include "world.hpp"

namespace gpurx::test {

// Runs the coroutine to its end on the world's io_context; what it throws fails the test.
template <class Coroutine>
void run(world& in, Coroutine coroutine)
{
    std::exception_ptr thrown;
    bool finished = false;
    asio::co_spawn(*in.io, std::move(coroutine), [&](std::exception_ptr what) {
        thrown = what;
        finished = true;
    });
    in.run_until([&] { return finished; });
    if (thrown)
        std::rethrow_exception(thrown);
}

}  // namespace gpurx::test
