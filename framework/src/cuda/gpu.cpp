// SPDX-License-Identifier: Apache-2.0
#include "gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <utility>

#include "allocations.hpp"
#include "gather_engine.hpp"
#include "memory/topology.hpp"
#include "stream_point.hpp"

namespace gpurx::detail::cuda {

namespace {

struct registry {
    struct entry {
        std::mutex opening;  // to make a context takes long
        std::atomic<gpu*> opened{nullptr};
    };

    std::mutex mutex;  // guards the map; the driver is not called under it
    std::map<int, entry> gpus;

    [[nodiscard]] entry& of(int ordinal)
    {
        std::scoped_lock const lock{mutex};
        return gpus[ordinal];
    }
};

}  // namespace

void check(CUresult status, char const* operation, std::string object)
{
    if (status == CUDA_SUCCESS)
        return;
    throw system_error{error_of(status),
                       {.operation = operation, .object = std::move(object), .kernel_message = {}, .advice = {}}};
}

gpu& gpu::open(int ordinal)
{
    auto const& calls = require_driver();
    auto& known = immortal<registry>().of(ordinal);
    if (auto* const opened = known.opened.load(std::memory_order_acquire))
        return *opened;
    std::scoped_lock const lock{known.opening};
    if (known.opened.load() == nullptr) {
        watch_streams();
        known.opened.store(new gpu{calls, ordinal}, std::memory_order_release);
    }
    return *known.opened.load();
}

static CUdevice find_device(driver const& calls, int ordinal)
{
    int const count = count_gpus();
    if (ordinal < 0 || ordinal >= count)
        throw system_error{
            error_of(CUDA_ERROR_INVALID_DEVICE),
            {.operation = "open",
             .object = fmt::format("GPU {}", ordinal),
             .kernel_message = {},
             .advice = fmt::format("this process sees {} GPU{}, numbered from 0", count, count == 1 ? "" : "s")}};
    CUdevice device = 0;
    check(calls.cuDeviceGet(&device, ordinal), "open", fmt::format("GPU {}", ordinal));
    return device;
}

static CUcontext retain_context(driver const& calls, CUdevice device, int ordinal)
{
    CUcontext context = nullptr;
    check(calls.cuDevicePrimaryCtxRetain(&context, device), "take the primary context of",
          fmt::format("GPU {}", ordinal));
    return context;
}

gpu::gpu(driver const& calls, int ordinal)
    : calls_{calls},
      ordinal_{ordinal},
      device_{find_device(calls, ordinal)},
      context_{retain_context(calls, device_, ordinal)},
      pinned_{*new pinned_pool{*this}}
{
    look();
}

void gpu::look()
{
    std::array<char, 256> name{};
    check(calls_.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device_), "name",
          fmt::format("GPU {}", ordinal_));
    name_ = name.data();
    // A driver that does not know an attribute does not have what it stands for.
    auto const value = [this](CUdevice_attribute attribute) {
        int number = 0;
        return calls_.cuDeviceGetAttribute(&number, attribute, device_) == CUDA_SUCCESS ? number : 0;
    };
#if CUDA_VERSION >= 13000
    constexpr auto host_dmabuf = CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED;
#else
    constexpr auto host_dmabuf = static_cast<CUdevice_attribute>(146);
#endif
    facts_ = {
        .processors = value(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        .dmabuf = value(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0,
        .host_dmabuf = value(host_dmabuf) != 0,
        .virtual_memory = value(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0,
        .rdma_memory = value(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0,
        .write_ordering = value(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
        .host_flush = (value(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
                       CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0,
    };
}

CUstream gpu::provide(std::atomic<CUstream>& stream)
{
    if (auto* const made = stream.load(std::memory_order_acquire))
        return made;
    std::scoped_lock const lock{making_streams_};
    if (auto* const made = stream.load())
        return made;
    auto* const fresh = make_stream();
    stream.store(fresh, std::memory_order_release);
    return fresh;
}

CUstream gpu::make_stream() const
{
    context_scope const scope{*this};
    auto const object = fmt::format("a stream of GPU {}", ordinal_);
    CUstream fresh = nullptr;
    check(scope.status(), "create", object);
    check(calls_.cuStreamCreate(&fresh, CU_STREAM_NON_BLOCKING), "create", object);
    return fresh;
}

CUresult gpu::failure(bool ask) noexcept
{
    auto const seen = failure_.load(std::memory_order_relaxed);
    if ((seen == CUDA_SUCCESS && !ask) || ending())
        return CUDA_SUCCESS;
    auto* own = copies_.load(std::memory_order_acquire);
    if (own == nullptr)
        own = fetches_.load(std::memory_order_acquire);
    if (own == nullptr && !ask)
        return seen;
    auto const status = own != nullptr ? query(own) : status_of_first_stream();
    failure_.store(is_over(status) ? status : CUDA_SUCCESS, std::memory_order_relaxed);
    return is_over(status) ? status : CUDA_SUCCESS;
}

CUresult gpu::query(CUstream stream) noexcept
{
    context_scope const scope{*this};
    return scope.status() == CUDA_SUCCESS ? calls_.cuStreamQuery(stream) : scope.status();
}

// A GPU that has done nothing for the library yet has no stream to ask: one is made, which a GPU in error refuses.
CUresult gpu::status_of_first_stream() noexcept
{
    try {
        return query(fetches());
    } catch (system_error const& refused) {
        return static_cast<CUresult>(refused.code().value());
    } catch (std::bad_alloc const&) {
        return CUDA_SUCCESS;
    }
}

CUstream gpu::copies()
{
    return provide(copies_);
}

CUstream gpu::fetches()
{
    return provide(fetches_);
}

void gpu::acquire(CUstream stream, context_scope const& within, capture of_stream) noexcept
{
    if (!facts_.orders_writes() && facts_.host_flush) {
        context_scope const own{within, context_};
        if (own.status() != CUDA_SUCCESS)
            return;
        static_cast<void>(calls_.cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                            CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
    }
    // No lock is held: who enqueues on a stream whose queue is full waits, and nobody is to wait for him.
    auto* const copies = copies_.load(std::memory_order_acquire);
    if (copies == nullptr)
        return;
    auto const captured = of_stream == capture::may_be && is_captured(stream);
    if (!captured && wait_behind_copies(stream, within, copies) == CUDA_SUCCESS)
        return;
    context_scope const own{within, context_};
    if (own.status() == CUDA_SUCCESS)
        static_cast<void>(calls_.cuStreamSynchronize(copies));
}

stream_point* gpu::hold_point_of_copies() noexcept
{
    std::scoped_lock const lock{point_mutex_};
    auto const is_behind = behind_copies_ != nullptr && copies_before_point_ >= copied_.load(std::memory_order_acquire);
    return is_behind ? hold(*behind_copies_) : nullptr;
}

CUresult gpu::wait_behind_copies(CUstream stream, context_scope const& within, CUstream copies) noexcept
{
    auto const noted = copied_.load(std::memory_order_acquire);
    auto* point = hold_point_of_copies();
    if (point == nullptr) {
        context_scope const own{within, context_};
        point = own.status() == CUDA_SUCCESS ? make_point(context_) : nullptr;
        if (point == nullptr)
            return CUDA_ERROR_OUT_OF_MEMORY;
        record(*point, copies);
        if (point->lost) {
            discard(point);
            return CUDA_ERROR_UNKNOWN;
        }
        auto* replaced = hold(*point);
        {
            std::scoped_lock const lock{point_mutex_};
            if (behind_copies_ == nullptr || copies_before_point_ <= noted) {
                std::swap(replaced, behind_copies_);
                copies_before_point_ = noted;
            }
        }
        if (replaced != nullptr)
            discard(replaced);
    }
    auto const status = calls_.cuStreamWaitEvent(stream, point->event, CU_EVENT_WAIT_DEFAULT);
    discard(point);
    return status;
}

void gpu::finish_copies() noexcept
{
    context_scope const scope{*this};
    auto* const copies = copies_.load(std::memory_order_acquire);
    if (scope.status() == CUDA_SUCCESS && copies != nullptr)
        static_cast<void>(calls_.cuStreamSynchronize(copies));
}

gather_engine& gpu::gather()
{
    if (auto* const made = gather_.load(std::memory_order_acquire))
        return *made;
    auto* const stream = fetches();
    std::scoped_lock const lock{making_gather_};
    if (gather_refused_)
        throw system_error{*gather_refused_};
    if (gather_ == nullptr) {
        try {
            gather_.store(new gather_engine{*this, stream}, std::memory_order_release);
        } catch (system_error const& refused) {
            // Memory may be there another time.
            if (refused.code() != error_of(CUDA_ERROR_OUT_OF_MEMORY)) {
                gather_refused_ = refused;
                is_gather_refused_ = true;
            }
            throw;
        }
    }
    return *gather_;
}

gather_engine* gpu::gather_if_any() noexcept
{
    if (is_gather_refused_)
        return nullptr;
    try {
        return &gather();
    } catch (std::exception const&) {
        return nullptr;
    }
}

void gpu::prepare(CUcontext context) noexcept
{
    auto* const engine = gather_if_any();
    if (engine != nullptr && context != context_)
        engine->prepare(context);
}

CUresult context_of(driver const& calls, gpu_stream const& stream, CUcontext& context) noexcept
{
    if (ending())
        return CUDA_ERROR_DEINITIALIZED;
    context = stream.context;
    if (context != nullptr)
        return CUDA_SUCCESS;
    auto* const handle = stream.stream.get();
    if (handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD)
        return calls.cuStreamGetCtx(handle, &context);
    CUdevice device = 0;
    if (calls.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr &&
        (stream.ordinal == no_gpu || (calls.cuCtxGetDevice(&device) == CUDA_SUCCESS && device == stream.ordinal)))
        return CUDA_SUCCESS;
    context = nullptr;
    if (stream.ordinal == no_gpu)
        return CUDA_ERROR_INVALID_CONTEXT;
    try {
        context = gpu::open(stream.ordinal).context();
        return CUDA_SUCCESS;
    } catch (std::exception const&) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
}

error_code refuse_captured(driver const& calls, CUstream stream) noexcept
{
    auto captured = CU_STREAM_CAPTURE_STATUS_NONE;
    auto const status = calls.cuStreamIsCapturing(stream, &captured);
    if (status == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || captured != CU_STREAM_CAPTURE_STATUS_NONE)
        return errc::unusable_stream;
    return error_of(status);
}

error_code enter_usable(gpu const& on, gpu_stream const& stream, std::optional<context_scope>& entered) noexcept
{
    auto const& calls = on.calls();
    CUcontext context = nullptr;
    if (auto const status = context_of(calls, stream, context); status != CUDA_SUCCESS)
        return error_of(status);
    if (auto const status = entered.emplace(calls, context).status(); status != CUDA_SUCCESS)
        return error_of(status);
    // Of the GPU's own context, which it keeps, nobody has to be asked whose it is.
    CUdevice device = on.device();
    if (context != on.context() && calls.cuCtxGetDevice(&device) == CUDA_SUCCESS && device != on.device())
        return errc::wrong_gpu;
    return refuse_captured(calls, stream.stream.get());
}

void note_failure(CUcontext context, CUresult seen) noexcept
{
    auto& all = immortal<registry>();
    std::scoped_lock const lock{all.mutex};
    for (auto const& [ordinal, known] : all.gpus) {
        auto* const opened = known.opened.load(std::memory_order_acquire);
        if (opened != nullptr && opened->context() == context)
            opened->note_failure(seen);
    }
}

bool is_kept(CUcontext context) noexcept
{
    auto& all = immortal<registry>();
    std::scoped_lock const lock{all.mutex};
    return std::ranges::any_of(all.gpus, [&](auto const& known) {
        auto const* const opened = known.second.opened.load(std::memory_order_acquire);
        return opened != nullptr && opened->context() == context;
    });
}

}  // namespace gpurx::detail::cuda

namespace gpurx::detail {

int count_gpus()
{
    int count = 0;
    cuda::check(cuda::require_driver().cuDeviceGetCount(&count), "count", "GPUs");
    return count;
}

gpu_place place_of(std::uintptr_t address) noexcept
{
    error_code code;
    diagnostics why;
    if (cuda::ending())
        return {};
    auto const* const calls = cuda::find_driver(code, why);
    if (calls == nullptr)
        return {};
    gpu_place place;
    unsigned type = 0;
    std::array attributes{CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_CONTEXT,
                          CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    std::array<void*, attributes.size()> values{&place.ordinal, &place.context, &type};
    if (calls->cuPointerGetAttributes(attributes.size(), attributes.data(), values.data(), address) != CUDA_SUCCESS ||
        (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_HOST))
        return {};
    if (type == CU_MEMORYTYPE_HOST)
        place.context = nullptr;
    return place;
}

}  // namespace gpurx::detail
