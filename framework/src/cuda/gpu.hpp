// SPDX-License-Identifier: Apache-2.0
//
// One GPU: its primary context, which programs on the CUDA runtime use too, and its capabilities. The library opens a
// GPU once and keeps it until the process ends, because streams, events and pages that return late need it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "driver.hpp"
#include "gpu_work.hpp"

namespace gpurx::detail::cuda {

class context_scope;
class gather_engine;
class pinned_pool;

// The attributes of cuDeviceGetAttribute that the library uses.
struct gpu_facts {
    int processors = 0;
    bool dmabuf = false;          // exports memory
    bool host_dmabuf = false;     // exports pinned host memory
    bool virtual_memory = false;  // has cuMemCreate
    bool rdma_memory = false;     // cuMemCreate takes gpuDirectRDMACapable
    int write_ordering = 0;       // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_…: readers that need no flush
    bool host_flush = false;      // cuFlushGPUDirectRDMAWrites does something

    // Returns whether work that is launched after the CPU has seen a NIC's writes also sees them.
    [[nodiscard]] bool orders_writes() const noexcept
    {
        return write_ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
    }
};

class gpu {
  public:
    // Throws system_error.
    [[nodiscard]] static gpu& open(int ordinal);
    gpu(gpu const&) = delete;
    gpu& operator=(gpu const&) = delete;
    ~gpu() = delete;

    [[nodiscard]] driver const& calls() const noexcept { return calls_; }
    [[nodiscard]] CUdevice device() const noexcept { return device_; }
    [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
    [[nodiscard]] gpu_facts const& facts() const noexcept { return facts_; }
    [[nodiscard]] std::string const& name() const noexcept { return name_; }
    [[nodiscard]] CUcontext context() const noexcept { return context_; }

    // Returns the permanent error of the context, or CUDA_SUCCESS. Without `ask` it asks the driver only if an error
    // was noted.
    [[nodiscard]] CUresult failure(bool ask) noexcept;
    void note_failure(CUresult seen) noexcept { failure_.store(seen, std::memory_order_relaxed); }

    // Returns a new stream that waits for no default stream. The caller owns it. Throws system_error.
    [[nodiscard]] CUstream make_stream() const;
    // The stream on which bytes of all flows cross PCIe, in order. So late bytes of a page never overwrite its next
    // bytes. Throws system_error.
    [[nodiscard]] CUstream copies();
    // Call it after each copy that was enqueued on copies().
    void note_copy() noexcept { copied_.fetch_add(1, std::memory_order_release); }
    // Returns a held point behind all noted copies: the one that acquire() recorded, if no copy was noted since.
    // Otherwise null.
    [[nodiscard]] stream_point* hold_point_of_copies() noexcept;
    // The stream of work that the CPU waits for. Throws system_error.
    [[nodiscard]] CUstream fetches();
    // Makes a NIC's earlier writes, and earlier work on copies(), visible to later work on `stream`. The stream's
    // context is current within `within`, and may be another GPU's. If the stream may be in capture, the function asks
    // the driver. In a capture it waits, because a capture cannot wait for work outside it.
    enum class capture : bool { is_none, may_be };
    void acquire(CUstream stream, context_scope const& within, capture = capture::is_none) noexcept;
    // Waits for the work enqueued on copies().
    void finish_copies() noexcept;
    // The first call makes the engine and loads the kernels; that may wait for work of the context. If the driver
    // refuses the kernels, later calls do not ask it again. Throws system_error.
    [[nodiscard]] gather_engine& gather();
    // Returns null if the driver is too old for the kernels.
    [[nodiscard]] gather_engine* gather_if_any() noexcept;
    // Loads the kernels, if available, in the GPU's own context and in `context`, which may be a program's. Call it
    // before a stream gets kernels, because loading may wait for all work of the context.
    void prepare(CUcontext context) noexcept;
    [[nodiscard]] pinned_pool& pinned() const noexcept { return pinned_; }

  private:
    gpu(driver const& calls, int ordinal);
    void look();
    [[nodiscard]] CUstream provide(std::atomic<CUstream>& stream);
    [[nodiscard]] CUresult query(CUstream stream) noexcept;
    [[nodiscard]] CUresult status_of_first_stream() noexcept;
    // Orders later work on `stream` after the noted copies.
    [[nodiscard]] CUresult wait_behind_copies(CUstream stream, context_scope const& within, CUstream copies) noexcept;

    driver const& calls_;
    int ordinal_;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    gpu_facts facts_;
    std::string name_;
    pinned_pool& pinned_;  // never destroyed

    std::atomic<CUresult> failure_{CUDA_SUCCESS};

    std::mutex making_streams_;  // held while the driver makes one; not needed to check for one
    std::atomic<CUstream> copies_{nullptr};
    std::atomic<CUstream> fetches_{nullptr};

    std::atomic<std::uint64_t> copied_{0};
    std::mutex point_mutex_;                 // guards the two below; no call of the driver is made under it
    stream_point* behind_copies_ = nullptr;  // recorded by acquire(), behind this number of noted copies
    std::uint64_t copies_before_point_ = 0;

    std::mutex making_gather_;  // guards the members below; may be held for long
    std::atomic<gather_engine*> gather_{nullptr};
    std::optional<system_error> gather_refused_;
    std::atomic<bool> is_gather_refused_{false};  // for callers without an error code
};

// Makes a context current in this thread while it lives, and then restores the previous one. It also permits calls
// while another thread captures a CUDA graph, which does not involve the library's streams.
class context_scope {
  public:
    context_scope(driver const& calls, CUcontext context) noexcept : calls_{calls}, context_{context} { enter(); }
    explicit context_scope(gpu const& of) noexcept : context_scope{of.calls(), of.context()} {}
    // Constructs a scope within another one of this thread. If both have the same context, it is already current.
    context_scope(context_scope const& outer, CUcontext context) noexcept : calls_{outer.calls_}, context_{context}
    {
        if (outer.status_ != CUDA_SUCCESS || outer.context_ != context)
            enter();
    }
    context_scope(context_scope const&) = delete;
    context_scope& operator=(context_scope const&) = delete;
    ~context_scope()
    {
        CUcontext popped = nullptr;
        if (!entered_)
            return;
        static_cast<void>(calls_.cuThreadExchangeStreamCaptureMode(&mode_));
        static_cast<void>(calls_.cuCtxPopCurrent(&popped));
    }
    // After an error make no other call.
    [[nodiscard]] CUresult status() const noexcept { return status_; }
    [[nodiscard]] CUcontext context() const noexcept { return context_; }

  private:
    void enter() noexcept
    {
        status_ = ending() ? CUDA_ERROR_DEINITIALIZED : calls_.cuCtxPushCurrent(context_);
        entered_ = status_ == CUDA_SUCCESS;
        if (entered_)
            static_cast<void>(calls_.cuThreadExchangeStreamCaptureMode(&mode_));
    }

    driver const& calls_;
    CUcontext context_;
    CUresult status_ = CUDA_SUCCESS;
    bool entered_ = false;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Returns the context of a stream. For default streams: the caller's context if it is the GPU's, otherwise the primary
// one.
[[nodiscard]] CUresult context_of(driver const& calls, gpu_stream const& stream, CUcontext& context) noexcept;

// Returns errc::unusable_stream for a stream that is being captured, or the driver's error. The stream's context is
// current.
[[nodiscard]] error_code refuse_captured(driver const& calls, CUstream stream) noexcept;

// Makes the stream's context current. Fails for streams that an operation cannot use: errc::wrong_gpu,
// errc::unusable_stream, the driver's errors.
[[nodiscard]] error_code enter_usable(gpu const& on, gpu_stream const& stream,
                                      std::optional<context_scope>& entered) noexcept;

// Throws an error of `operation` on `object` if `status` is not success.
void check(CUresult status, char const* operation, std::string object);

// Runs `work`. If it throws, sets `code` and returns a default-constructed result.
template <class Work>
auto reporting(error_code& code, Work work) noexcept -> decltype(work())
{
    try {
        return work();
    } catch (system_error const& failure) {
        code = failure.code();
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
    }
    return {};
}

// Notes an error that the driver reported for a stream in this context. Ignores contexts that are not primary.
void note_failure(CUcontext context, CUresult seen) noexcept;

// Returns whether gpurx keeps this primary context. The address of any other context may be reused by a later one.
[[nodiscard]] bool is_kept(CUcontext context) noexcept;

}  // namespace gpurx::detail::cuda
