// SPDX-License-Identifier: Apache-2.0
//
// A CUDA driver without a GPU: a shared library with the soname libcuda.so.1 that a test program links to, so that
// dlopen("libcuda.so.1") finds it loaded already. Device memory is a file in memory; its device addresses are pages
// that no CPU access survives. Each stream is a thread that works through a queue, so a test can hold it and look. The
// kernels of the library are what the CUDA compiler made of them, run by an interpreter (ptx_machine.hpp). This header
// is what tests control it with.
//
// Stricter than a driver, so that mistakes show: addresses and handles are not used again until many others were, all
// calls that may need a current context do need one (but not: cuMem* of virtual memory, cuPointer*, cuEventQuery,
// cuEventSynchronize, cuLibrary*, and cuStreamGetCtx and cuStreamGetDevice of a stream that was created), and a kernel
// is launched only with the stream's context current. Booleans of cuPointerGetAttribute are written as 4 bytes. Host
// functions run one after the other, whatever their streams: one that waits holds up all others. A copy from pageable
// memory returns when the bytes are taken, not when they are there, and waits for its stream before it takes them if
// it is asynchronous. Memory is freed, unregistered and unmapped once all that its device's streams were given has
// been done, whatever their contexts. A stream, an event, a graph, a library or a kernel that was given up, or never
// was one, ends the program, with the call that it was used in on the standard error. A program that did something
// against the rules (violations()) and has not cleared that ends with it on the standard error, and with 1.
//
// A stream's queue takes 1,000 commands, then whoever enqueues waits. A kernel reaches memory of cuMemAlloc in the
// context that it was made in only, and so it is told to who asks. What a capture does not allow (to wait for its
// stream, to ask for it, to wait for its context; to have it wait for what is not in it) fails, and the capture is
// invalid then, which is a violation. While one is under way, every thread that has not said that it does not mind is
// refused what waits, allocates or asks, and spoils it so.
//
// Not modelled: that the default streams wait for other work (the null stream, CU_STREAM_LEGACY and
// CU_STREAM_PER_THREAD are one stream per context that waits for nothing); peer access (copies reach all devices,
// kernels only their own and the host); access rights of parts of a mapping; timing of events; warps side by side (they
// take turns, and so do blocks); kernels of more than one dimension; captures of more than one stream, in another mode
// than CU_STREAM_CAPTURE_MODE_GLOBAL, or with pageable memory. A driver's error for a misuse may be another than
// the one that is returned here.
//
// Thread safety: safe. No hook and no call runs under a lock that a held stream keeps.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// The tests are another part of the program than this library.
#pragma GCC visibility push(default)

namespace fake_cuda {

// ---- all of it ----

// As at the start of the program, but cuInit stays done, addresses of the past unused, and violations() noted. Ends all
// streams; work that was not done is dropped. For use between tests, when the code under test holds nothing of CUDA.
void reset();
// Only what tests set, and what is counted: what the code under test made stays (contexts and streams that it keeps for
// good), and so do the number of devices, their errors, and violations(). Held streams are let go.
void reset_settings();
// False: as if cuInit had not been called; calls fail with CUDA_ERROR_NOT_INITIALIZED until it is.
void set_initialised(bool initialised);

// ---- devices ----

// How many there are; 2 after a reset. All are as an H100 on PCIe. Throws std::logic_error while there are contexts.
void set_devices(int count);
// What cuDeviceGetAttribute says, for any number that an attribute may have.
void set_attribute(int device, CUdevice_attribute attribute, int value);
void set_name(int device, std::string name);
// 80 GiB after a reset. cuMemAlloc and cuMemCreate fail with CUDA_ERROR_OUT_OF_MEMORY beyond it.
void set_memory_size(int device, std::size_t bytes);
// cuDriverGetVersion; 13000 after a reset. A driver that is older than the CUDA compiler that made a kernel's PTX loads
// the image, and refuses the kernel when it is needed: CUDA_ERROR_UNSUPPORTED_PTX_VERSION.
void set_driver_version(int version);
// Whether cuMemGetHandleForAddressRange takes CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE; no after a reset.
void set_pcie_mapping(int device, bool supported);
// Whether a device can be attached to what that flag is given for; yes after a reset. Else it is a file, and no dmabuf.
void set_pcie_attaches(int device, bool attaches);

// ---- memory ----

// The bytes of a range of device, host or registered memory, for the test to read and write. Throws std::out_of_range
// if they are not all there (mapped). Valid until the memory is freed or unmapped.
[[nodiscard]] std::byte* bytes_at(CUdeviceptr address, std::size_t size);

// How the allocation that `address` lies in looks to cuPointerGetAttribute(s) and to exports: as if from
// cuMemAllocManaged; as if from a memory pool; whether it can be used for RDMA.
void set_managed(CUdeviceptr address, bool managed);
void set_from_pool(CUdeviceptr address, bool from_pool);
void set_rdma_capable(CUdeviceptr address, bool capable);
// Whether CU_POINTER_ATTRIBUTE_DEVICE_POINTER is told of memory that kernels in the current context do not reach. Its
// address is the same everywhere, and nothing keeps a driver from it. No after a reset.
void set_pointers_told(bool told);

// What cuMemGetHandleForAddressRange returned this descriptor (or one that it is a duplicate of) for. With /dev/udmabuf
// it is a dmabuf of the range, and offset is 0. Without, it is of the whole allocation, and the range starts `offset`
// bytes into it; of several exports of one allocation the last is told then. A range of several mappings is a file of
// its own then, which has none of their bytes.
struct exported_range {
    CUdeviceptr address = 0;
    std::size_t size = 0;
    std::size_t offset = 0;
    unsigned long long flags = 0;
};
[[nodiscard]] std::optional<exported_range> find_export(int descriptor);

// ---- streams ----

// The stream executes nothing more until it is let go; what it was executing is finished when hold() returns. Works for
// default streams (of the current context) as well, and for a destroyed stream that still has work.
void hold(CUstream stream);
void let_go(CUstream stream);
// The same for all streams, those of the future too. A stream that is held by itself stays so.
void hold_all();
void let_go_all();
// The streams that exist, default streams not among them: those that the code under test made.
[[nodiscard]] std::vector<CUstream> streams();
// The stream is being captured into a graph, which nobody will see: what it is given goes there, and events that it
// records cannot be asked for.
void set_captured(CUstream stream, bool captured);
// Another thread captures a graph of its own: calls that wait, allocate or ask are refused in threads that have not
// said that they do not mind.
void set_capture_elsewhere(bool captures);
// The first launch of a kernel in a context loads it there, and waits for all of the context's streams first, as a
// driver may that loads lazily. So it is after a reset.
void set_loading_waits(bool waits);
// Calls of this function wait, and hold up none of another, until it goes on.
void stall(std::string const& function);
void go_on(std::string const& function);
// Operations that were given to the stream and are not finished.
[[nodiscard]] std::size_t queued(CUstream stream);
// Each copy and each fill takes this much longer for each of its bytes; 0 after a reset.
void set_delay_per_byte(std::chrono::duration<double, std::nano> delay);
// cuMemHostAlloc takes this long, and all other calls wait meanwhile; 0.1 ms after a reset, 0.1 to 1 ms in a driver.
void set_pinning_time(std::chrono::nanoseconds time);
// Bytes that copies, fills and kernels have written to device memory.
[[nodiscard]] std::uint64_t bytes_written();

// ---- faults ----

// A sticky error: the device's primary context, in which the fault was, reports it from now on when it is asked, and
// what its streams have queued is not done. Whether a stream is being captured can be asked all the same. Memory,
// streams and events are given up all the same by calls that report it. CUDA_SUCCESS mends it, as no driver can.
void break_context(int device, CUresult error);
// After `after` more calls the next `times` of this function ("cuMemAlloc", with or without its version) return `error`
// and do nothing else. One rule for each function; times 0 takes it back.
void fail(std::string const& function, CUresult error, unsigned after = 0, unsigned times = 1);
// The next call of the calling thread: the thread that looks at streams calls the driver, too.
void fail_here(std::string const& function, CUresult error);
// Each call returns CUDA_ERROR_DEINITIALIZED and is counted: for the end of main. It is so too when the process ends.
void set_now_gone();
[[nodiscard]] std::size_t calls_when_gone();

// ---- what was done ----

// How often a function was called, failed calls too, since the last reset.
[[nodiscard]] std::size_t calls(std::string const& function);
// The same for the calls that this thread made, of all functions that it called.
[[nodiscard]] std::map<std::string, std::size_t> calls_of_this_thread();
// The streams that a function was called on, and how often, since the last reset.
[[nodiscard]] std::map<CUstream, std::size_t> calls_on_streams(std::string const& function);
// Asynchronous copies with an end in pageable memory, since the last reset.
[[nodiscard]] std::size_t pageable_copies();
// What the fake driver itself has allocated in calls, going by a counter of the test's.
void set_allocation_counter(std::size_t (*counter)());
[[nodiscard]] std::size_t allocations();
// Whether this thread is in a call: what is allocated now is the fake driver's.
[[nodiscard]] bool is_in_call() noexcept;
// Contexts that are current in this thread, one above the other.
[[nodiscard]] std::size_t current_contexts();

// What exists and must not when the code under test is done.
struct live_counts {
    std::size_t contexts_retained = 0;  // cuDevicePrimaryCtxRetain without a release
    std::size_t contexts_created = 0;
    std::size_t streams = 0;
    std::size_t events = 0;
    std::size_t graphs = 0;              // executable ones too
    std::size_t device_allocations = 0;  // of cuMemAlloc
    std::size_t host_allocations = 0;
    std::size_t host_registrations = 0;
    std::size_t vmm_handles = 0;  // of cuMemCreate
    std::size_t vmm_reservations = 0;
    std::size_t vmm_mappings = 0;
    std::size_t libraries = 0;
    friend bool operator==(live_counts const&, live_counts const&) = default;
};
[[nodiscard]] live_counts live();
// For Python, which knows neither live_counts nor vectors. The second returns how many streams exist.
[[nodiscard]] std::size_t mappings();
[[nodiscard]] std::size_t streams(CUstream* handles, std::size_t room);

// What the code under test did against CUDA's contract, in words: to be empty at the end of a test, and of a program.
// Memory freed that queued work uses, a handle used after its context's end, a call without a context or with another
// than it needs, a context ended with things or work in it, a call of CUDA from a host function.
[[nodiscard]] std::vector<std::string> violations();
void clear_violations();

}  // namespace fake_cuda

#pragma GCC visibility pop
