// SPDX-License-Identifier: Apache-2.0
#include "allocations.hpp"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/byte_size.hpp"
#include "base/thread.hpp"
#include "memory/memory_state.hpp"
#include "stream_point.hpp"

namespace gpurx::detail::cuda {

device_block::device_block(gpu const& on, std::size_t bytes, use what_for) : on_{on}, size_{round_up(bytes, unit)}
{
    auto const& facts = on_.facts();
    if (!facts.virtual_memory || (what_for == use::rdma && !facts.rdma_memory)) {
        check(on_.calls().cuMemAlloc(&address_, size_), "allocate",
              fmt::format("{} of GPU {}", size_text(bytes), on_.ordinal()));
        return;
    }
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = on_.ordinal()};
    properties.allocFlags.gpuDirectRDMACapable = what_for == use::rdma ? 1 : 0;
    try {
        map(properties);
    } catch (...) {
        release();
        throw;
    }
}

void device_block::map(CUmemAllocationProp const& properties)
{
    auto const& calls = on_.calls();
    auto const object = fmt::format("{} of GPU {}", size_text(size_), on_.ordinal());
    std::size_t granularity = unit;
    check(calls.cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "allocate",
          object);
    size_ = round_up(size_, granularity);
    check(calls.cuMemCreate(&physical_, size_, &properties, 0), "allocate", object);
    has_physical_ = true;
    check(calls.cuMemAddressReserve(&address_, size_, unit, 0, 0), "reserve addresses for", object);
    reserved_ = true;
    check(calls.cuMemMap(address_, size_, 0, physical_, 0), "map", object);
    mapped_ = true;
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(calls.cuMemSetAccess(address_, size_, &access, 1), "give access to", object);
}

void device_block::release() noexcept
{
    auto const& calls = on_.calls();
    if (mapped_ && !ending())
        static_cast<void>(calls.cuMemUnmap(address_, size_));
    // The process may have begun to end meanwhile: that waits for the GPU.
    if (reserved_ && !ending())
        static_cast<void>(calls.cuMemAddressFree(address_, size_));
    else if (!has_physical_ && address_ != 0 && !ending())
        static_cast<void>(calls.cuMemFree(address_));
    if (has_physical_ && !ending())
        static_cast<void>(calls.cuMemRelease(physical_));
}

CUresult pinned_pool::take(std::size_t size, std::byte*& block)
{
    {
        std::scoped_lock const lock{mutex_};
        auto& known = of_size_[size];
        if (!known.free.empty()) {
            block = known.free.back();
            known.free.pop_back();
            return CUDA_SUCCESS;
        }
        known.free.reserve(known.made + 1);  // put() must not fail
        ++known.made;
    }
    void* pinned = nullptr;
    auto status = CUDA_SUCCESS;
    {
        context_scope const scope{gpu_};
        status = scope.status();
        if (status == CUDA_SUCCESS)
            status = gpu_.calls().cuMemHostAlloc(&pinned, size, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    }
    if (status != CUDA_SUCCESS) {
        std::scoped_lock const lock{mutex_};
        --of_size_[size].made;
    }
    block = static_cast<std::byte*>(pinned);
    return status;
}

void pinned_pool::put(std::byte* block, std::size_t size) noexcept
{
    std::scoped_lock const lock{mutex_};
    of_size_[size].free.push_back(block);
}

namespace {

class ending_memories {
  public:
    // False: nobody will end it.
    [[nodiscard]] bool take(memory_state* ending) noexcept
    {
        std::scoped_lock const lock{mutex_};
        if (stopping_)
            return false;
        try {
            if (!thread_.joinable())
                thread_ = start_thread("gpurx-memory", [this](std::stop_token const&) { run(); });
            waiting_.emplace_back(ending);
        } catch (system_error const&) {
            return false;
        } catch (std::bad_alloc const&) {
            return false;
        }
        changed_.notify_all();
        return true;
    }

    void stop() noexcept
    {
        constexpr std::chrono::seconds patience{1};
        std::unique_lock lock{mutex_};
        stopping_ = true;
        auto left = std::move(waiting_);
        changed_.notify_all();
        lock.unlock();
        left.clear();
        lock.lock();
        auto const is_done = changed_.wait_for(lock, patience, [&] { return !at_work_; });
        lock.unlock();
        if (!thread_.joinable())
            return;
        if (is_done)
            thread_.join();
        else
            thread_.detach();  // it ends with the process
    }

  private:
    void run() noexcept
    {
        std::unique_lock lock{mutex_};
        for (;;) {
            changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
            if (stopping_)
                return;
            auto ending = std::move(waiting_.front());
            waiting_.pop_front();
            at_work_ = true;
            lock.unlock();
            ending.reset();
            lock.lock();
            at_work_ = false;
            changed_.notify_all();
        }
    }

    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    std::deque<std::unique_ptr<memory_state>> waiting_;
    bool at_work_ = false;
    bool stopping_ = false;
    std::jthread thread_;
};

}  // namespace

void end_memory(memory_state* ending) noexcept
{
    if (!is_watching_streams() || !immortal<ending_memories>().take(ending))
        delete ending;
}

void finish_memory_ends() noexcept
{
    immortal<ending_memories>().stop();
}

}  // namespace gpurx::detail::cuda
