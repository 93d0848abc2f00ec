// SPDX-License-Identifier: Apache-2.0
//
// Operations on a world, run to their end, for the tests of GPU memory.
#pragma once

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "completion.hpp"
#include "eventually.hpp"
#include "world.hpp"

namespace gpurx::test {

// The next bytes, which have to come without an error.
[[nodiscard]] inline completion_ptr receive_bytes(world& in, receiver& rx)
{
    auto result = receive(in, rx);
    REQUIRE_FALSE(result->code);
    return result;
}

// At least `size` of them.
[[nodiscard]] inline std::vector<rx_buffer> receive_all(world& in, receiver& rx, std::size_t size)
{
    std::vector<rx_buffer> loans;
    for (std::size_t got = 0; got < size; got += loans.back().size())
        loans.push_back(std::move(receive_bytes(in, rx)->loan));
    return loans;
}

template <class... Destination>
[[nodiscard]] completion_ptr read(world& in, receiver& rx, Destination... to)
{
    auto result = make_completion();
    async_read(rx, to..., noting{result});
    in.run_until([&] { return result->done(); });
    return result;
}

// Waits for what another thread does.
template <class Condition>
[[nodiscard]] bool soon(Condition holds)
{
    return eventually(std::move(holds));
}

}  // namespace gpurx::test
