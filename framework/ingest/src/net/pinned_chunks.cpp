// SPDX-License-Identifier: Apache-2.0
#include "pinned_chunks.hpp"

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/memory.hpp>
#include <mutex>
#include <utility>
#include <vector>

namespace gpurx::ingest::detail {

namespace {

// Stays in a core's own cache, and the end of its copy costs little beside its decryption.
constexpr std::size_t chunk_size = std::size_t{512} << 10;

// Memory that no connection uses. It stays pinned until the process ends: to free it would wait for all streams of the
// GPU. Any thread.
class spare_memory {
  public:
    static spare_memory& instance()
    {
        static auto* const one = new spare_memory;
        return *one;
    }

    [[nodiscard]] device_memory take(error_code& code)
    {
        {
            std::scoped_lock const lock{mutex_};
            if (!spare_.empty()) {
                auto found = std::move(spare_.back());
                spare_.pop_back();
                return found;
            }
        }
        diagnostics why;
        return device_memory::on_pinned_host(chunk_size, 0, code, why);
    }
    void put(device_memory memory, bool is_free)
    {
        std::scoped_lock const lock{mutex_};
        (is_free ? spare_ : lost_).push_back(std::move(memory));
    }

  private:
    std::mutex mutex_;
    std::vector<device_memory> spare_;
    std::vector<device_memory> lost_;  // a GPU may still read it
};

}  // namespace

struct pinned_chunks::state {
    explicit state(asio::any_io_executor const& executor) : passed{executor} {}
    state(state const&) = delete;
    state& operator=(state const&) = delete;
    // What the GPU may still read, after an error or at the end of the executor, is not used again.
    ~state()
    {
        for (auto& each : chunks) {
            if (each.memory.valid())
                spare_memory::instance().put(std::move(each.memory), !each.is_read);
        }
    }

    struct chunk {
        device_memory memory;
        bool is_read = false;  // by the GPU, as far as is known
    };

    std::array<chunk, 2> chunks;
    std::size_t next = 0;
    error_code failure;         // of the GPU
    asio::steady_timer passed;  // cancelled when a chunk is free
};

pinned_chunks::pinned_chunks(asio::any_io_executor const& executor) : state_{std::make_shared<state>(executor)} {}

asio::awaitable<error_code> pinned_chunks::async_room(host_span& room)
{
    auto const all = state_;
    auto& next = all->chunks.at(all->next);
    while (next.is_read && !all->failure) {
        all->passed.expires_at(std::chrono::steady_clock::time_point::max());
        co_await all->passed.async_wait(asio::as_tuple(asio::deferred));
        if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none)
            co_return asio::error::operation_aborted;
    }
    auto code = all->failure;
    if (!code && !next.memory.valid())
        next.memory = spare_memory::instance().take(code);
    if (!code)
        room = {reinterpret_cast<std::byte*>(next.memory.span().address()), chunk_size};
    co_return code;
}

error_code pinned_chunks::send(memory_span to, cuda_stream_ref stream)
{
    auto& chunk = state_->chunks.at(state_->next);
    state_->next = (state_->next + 1) % state_->chunks.size();
    fragment const piece{chunk.memory.span().address(), to.size(), memory_kind::host};
    error_code code;
    static_cast<void>(gather({&piece, 1}, to, stream, code));
    if (code)
        return code;
    chunk.is_read = true;
    // The handler keeps the memory.
    gpurx::async_wait(state_->passed.get_executor(), stream, to, [all = state_, &chunk](error_code failed) {
        if (failed)
            all->failure = failed;
        else
            chunk.is_read = false;
        all->passed.cancel();
    });
    return {};
}

}  // namespace gpurx::ingest::detail
