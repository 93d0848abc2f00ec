// SPDX-License-Identifier: Apache-2.0
//
// One GPU: its primary context, which programs on the CUDA runtime use as well, and what it can do. Opened once, and
// kept until the process ends: streams, events and pages that come back late need it.
#pragma once

#include <atomic>
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

// What cuDeviceGetAttribute says, as far as it matters here.
struct gpu_facts {
    int processors = 0;
    bool dmabuf = false;          // exports memory
    bool host_dmabuf = false;     // exports pinned host memory
    bool virtual_memory = false;  // has cuMemCreate
    bool rdma_memory = false;     // cuMemCreate takes gpuDirectRDMACapable
    int write_ordering = 0;       // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_…: for whom a NIC's writes need no flush
    bool host_flush = false;      // cuFlushGPUDirectRDMAWrites does something

    // A NIC's writes are seen by work that is launched after the CPU knows of them.
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

    // What the context is in error with for good, or CUDA_SUCCESS. Without `ask` the driver is asked only where
    // somebody has seen an error.
    [[nodiscard]] CUresult failure(bool ask) noexcept;
    void note_failure(CUresult seen) noexcept { failure_.store(seen, std::memory_order_relaxed); }

    // One that waits for no default stream, and that nobody keeps. Throws system_error.
    [[nodiscard]] CUstream make_stream() const;
    // The stream on which bytes cross PCIe for all flows, in order: so a page that is used again is never overtaken by
    // its last bytes. Throws system_error.
    [[nodiscard]] CUstream copies();
    // One for what the CPU waits for. Throws system_error.
    [[nodiscard]] CUstream fetches();
    // What a NIC wrote so far, and what was enqueued on copies() so far, becomes visible to work enqueued later on
    // `stream`, whose context is current within `within`, and which may be another GPU's. One that may be in capture is
    // asked, and if it is, this waits: what a capture waits for has to be in it.
    enum class capture : bool { is_none, may_be };
    void acquire(CUstream stream, context_scope const& within, capture = capture::is_none) noexcept;
    // Waits for what was enqueued on copies().
    void finish_copies() noexcept;
    // Throws system_error. Made by the first call, which loads the kernels: that may wait for work of the context. A
    // driver that refuses them is not asked again.
    [[nodiscard]] gather_engine& gather();
    // Null where the driver is too old for the kernels.
    [[nodiscard]] gather_engine* gather_if_any() noexcept;
    // Loads the kernels, if they can be had, in the GPU's own context and in `context`, which may be a program's:
    // before a stream gets any, as that may wait for all of the context.
    void prepare(CUcontext context) noexcept;
    [[nodiscard]] pinned_pool& pinned() const noexcept { return pinned_; }

  private:
    gpu(driver const& calls, int ordinal);
    void look();
    [[nodiscard]] CUstream provide(std::atomic<CUstream>& stream);
    [[nodiscard]] CUresult query(CUstream stream) noexcept;
    [[nodiscard]] CUresult status_of_first_stream() noexcept;

    driver const& calls_;
    int ordinal_;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    gpu_facts facts_;
    std::string name_;
    pinned_pool& pinned_;  // never destroyed

    std::atomic<CUresult> failure_{CUDA_SUCCESS};

    std::mutex making_streams_;  // held while the driver makes one: who only asks whether there is one does without
    std::atomic<CUstream> copies_{nullptr};
    std::atomic<CUstream> fetches_{nullptr};

    std::mutex making_gather_;  // guards what follows; it may be held for long
    std::atomic<gather_engine*> gather_{nullptr};
    std::optional<system_error> gather_refused_;
    std::atomic<bool> is_gather_refused_{false};  // for who takes no error
};

// Makes a context current in this thread while it lives, and then what was current before. While another thread
// captures a CUDA graph of its own, which concerns none of our streams, calls are allowed all the same.
class context_scope {
  public:
    context_scope(driver const& calls, CUcontext context) noexcept : calls_{calls}, context_{context} { enter(); }
    explicit context_scope(gpu const& of) noexcept : context_scope{of.calls(), of.context()} {}
    // Within another one of this thread. If the context is that one's, it is current already.
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
    // With an error no other call makes sense.
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

// The context that a stream belongs to: the caller's for the default streams if it is the GPU's, else the primary one.
[[nodiscard]] CUresult context_of(driver const& calls, gpu_stream const& stream, CUcontext& context) noexcept;

// errc::unusable_stream for a stream that is being captured, or what the driver reports. Its context is current.
[[nodiscard]] error_code refuse_captured(driver const& calls, CUstream stream) noexcept;

// Makes it current, but for streams that an operation cannot use: errc::wrong_gpu, errc::unusable_stream, the driver's
// errors.
[[nodiscard]] error_code enter_usable(gpu const& on, gpu_stream const& stream,
                                      std::optional<context_scope>& entered) noexcept;

// Throws what speaks against `operation` on `object` if `status` is not success.
void check(CUresult status, char const* operation, std::string object);

// Runs `work`; what it throws becomes the error, and the result is what its type has by default.
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

// Somebody was told so of a stream in this context; other contexts than primary ones are nobody's concern.
void note_failure(CUcontext context, CUresult seen) noexcept;

// Whether this is a primary context that gpurx keeps: no other can be told from a later one at the same address.
[[nodiscard]] bool is_kept(CUcontext context) noexcept;

}  // namespace gpurx::detail::cuda
