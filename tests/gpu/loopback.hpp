// SPDX-License-Identifier: Apache-2.0
//
// A world whose session receives into a GPU's memory, and operations on it, run to their end.
#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "bed.hpp"
#include "completion.hpp"
#include "eventually.hpp"
#include "memory/page_pool.hpp"
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

struct gpu_world : world {
    explicit gpu_world(std::size_t bytes = 8 << 20, rx_session_options options = {})
        : gpu_world{device_memory_of(bytes), std::move(options)}
    {}
    gpu_world(std::shared_ptr<detail::memory_state> memory, rx_session_options options)
        : world{transport::copy, std::move(options), {std::move(memory), {}}}, on{gpu_or_skip()}
    {}
    static std::shared_ptr<detail::memory_state> device_memory_of(std::size_t bytes)
    {
        return detail::make_gpu_memory(gpu_or_skip().ordinal(), bytes);
    }
    [[nodiscard]] std::size_t free_pages() const { return session.state().pages().free_count(); }

    detail::cuda::gpu& on;
};

inline constexpr std::size_t batch_size = 100'000;

[[nodiscard]] inline std::vector<rx_buffer> receive_batch(world& in, sender& to, receiver& rx)
{
    to.send(batch_size);
    return receive_all(in, rx, batch_size);
}

inline void release_after(std::vector<rx_buffer>& loans, gpu_test_stream const& stream)
{
    for (auto& loan : loans)
        loan.release_after(stream.ref());
}

[[nodiscard]] inline std::vector<fragment> fragments_of(std::vector<rx_buffer> const& loans)
{
    std::vector<fragment> pieces;
    for (auto const& loan : loans)
        pieces.insert(pieces.end(), loan.fragments().begin(), loan.fragments().end());
    return pieces;
}

}  // namespace gpurx::test
