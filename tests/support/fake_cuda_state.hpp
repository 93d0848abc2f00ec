// SPDX-License-Identifier: Apache-2.0
//
// Inside the fake CUDA driver (fake_cuda.hpp): all of its state, under one mutex. Operations of streams run without it.
#pragma once

// The functions of cuda.h are to be found by dlsym, whatever the build's default is.
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_cuda.hpp"
#include "ptx_machine.hpp"

namespace fake_cuda::inside {

struct state;
using guard = std::unique_lock<std::mutex>;
// A handle as a number. No number is given out twice, and none is a valid address.
using number = std::uint64_t;

template <class Handle>
number number_of(Handle handle) noexcept
{
    if constexpr (std::is_pointer_v<Handle>)
        return reinterpret_cast<number>(handle);
    else
        return handle;
}
template <class Handle>
Handle handle_of(number n) noexcept
{
    if constexpr (std::is_pointer_v<Handle>)
        return reinterpret_cast<Handle>(n);
    else
        return n;
}

struct range {
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
    // Whether `inner` lies in it.
    [[nodiscard]] bool holds(range const& inner) const noexcept
    {
        return inner.begin >= begin && inner.begin - begin <= size && inner.size <= size - (inner.begin - begin);
    }
    [[nodiscard]] bool meets(range const& other) const noexcept
    {
        return begin < other.begin + other.size && other.begin < begin + size;
    }
};

// ---- devices and contexts ----

struct context {
    number handle = 0;
    int device = 0;
    bool primary = false;
    CUresult error = CUDA_SUCCESS;  // sticky
    bool ended = false;
    number default_stream = 0;  // 0: not made yet
};

struct device {
    std::map<int, int> attributes;
    std::string name;
    std::size_t memory_size = 0;
    std::size_t memory_used = 0;
    bool pcie_mapping = false;
    bool pcie_attaches = true;
    std::size_t retained = 0;
    std::shared_ptr<context> primary;
    [[nodiscard]] bool has(CUdevice_attribute attribute) const;
};

device default_device(int ordinal);

// ---- memory ----

// Bytes of a file in memory.
struct memory_file {
    explicit memory_file(std::size_t bytes);
    memory_file(memory_file const&) = delete;
    memory_file& operator=(memory_file const&) = delete;
    ~memory_file();
    int descriptor = -1;
    std::size_t size = 0;
};

enum class region_kind { device, host, registered, reservation };

// A device's memory that is in use. Made and destroyed under the lock.
class charge {
  public:
    charge(state& s, int device, std::size_t bytes);
    charge(charge const&) = delete;
    charge& operator=(charge const&) = delete;
    ~charge();

  private:
    state& state_;
    int device_;
    std::size_t bytes_;
};

// What cuMemCreate made; lives while it has a handle or is mapped.
struct physical {
    physical(state& s, std::size_t bytes, int ordinal, bool for_rdma)
        : file{bytes}, charged{s, ordinal, bytes}, device{ordinal}, rdma{for_rdma}
    {}
    memory_file file;
    charge charged;
    int device;
    bool rdma;
};

struct mapping {
    std::shared_ptr<physical> of;
    std::size_t size = 0;
    std::size_t offset = 0;  // into the file
    std::set<int> access;    // devices
};

// Addresses that were given out. The CPU's view of them is at `alias`, and for host memory is the same.
struct region {
    region_kind kind = region_kind::device;
    range addresses;
    std::byte* alias = nullptr;
    std::size_t alias_size = 0;  // what is to be unmapped
    std::unique_ptr<memory_file> file;
    std::unique_ptr<charge> charged;
    int device = 0;
    number context = 0;
    std::map<std::uint64_t, mapping> mappings;  // of a reservation, by offset
    bool managed = false;
    bool from_pool = false;
    bool rdma = false;
    bool sync_memops = false;
};

// ---- streams and events ----

// A place in a stream's queue.
struct record {
    bool done = false;
};

struct stream;

struct operation {
    std::function<CUresult(stream&)> run;      // without the lock; may be empty
    std::function<std::vector<range>()> uses;  // under the lock, while it waits; may be empty
    std::shared_ptr<record> wait;              // not before this is done
    std::function<bool()> ready;               // nor before this, under the lock; may be empty
    bool of_host = false;                      // a host function
    std::shared_ptr<record> mark;              // done with this operation
    number library = 0;                        // whose kernel it runs
};

enum class capture { none, active, invalidated };

struct stream {
    number handle = 0;
    std::shared_ptr<context> of;
    unsigned flags = 0;
    bool is_default = false;
    bool held = false;
    capture captured = capture::none;
    std::thread::id captured_by;   // may end it
    std::vector<operation> nodes;  // of the graph that it is captured into
    bool destroyed = false;        // ends when its queue is empty
    bool dropped = false;          // ends at once
    bool busy = false;             // runs an operation
    bool finished = false;         // its thread has no more to do
    std::deque<operation> queue;
    std::vector<range> in_use;  // by the operation that runs
    number library_in_use = 0;
    std::shared_ptr<record> last;  // the place behind all that it was given
    std::thread thread;
    [[nodiscard]] bool idle() const noexcept { return finished || (queue.empty() && !busy); }
};

struct event {
    std::shared_ptr<context> of;
    std::shared_ptr<record> last;
    std::shared_ptr<stream> captured_in = {};  // recorded into a graph
};

// What was captured, to be done in this order; also one that can be launched.
struct graph {
    std::shared_ptr<context> of;
    std::vector<operation> nodes;
};

// ---- kernels ----

// What a kernel will use, as far as that is known while it waits; `of_host` gives the bytes of host memory, else null.
using host_bytes = std::function<std::byte const*(range)>;

// By fake_cuda_kernels.cpp.

// A kernel of an image that was loaded.
struct kernel_code {
    std::shared_ptr<ptx::kernels const> image;  // that it is of
    ptx::kernel const* code = nullptr;
};

struct loaded_kernel {
    kernel_code what;
    number library = 0;
    std::set<number> loaded_in;  // contexts
};

// Parameters as one block, as the kernel gets them.
using parameter_block = std::vector<std::byte>;

// The image's PTX; null if it has none. What the interpreter does not know is a violation, and null as well.
std::shared_ptr<ptx::kernels const> load_image(state& s, void const* image);
// The oldest driver that takes the image's PTX, as cuDriverGetVersion tells it.
int driver_version_for(void const* image);
std::vector<range> kernel_uses(ptx::kernel const& code, host_bytes const& of_host, parameter_block const& parameters);
// On the stream's thread.
CUresult run_kernel(stream& on, ptx::kernel const& code, unsigned blocks, unsigned threads,
                    parameter_block const& parameters);

// ---- all of it ----

// What cuMemHostAlloc takes at least in a driver.
constexpr std::chrono::nanoseconds default_pinning = std::chrono::microseconds{100};

struct failure {
    CUresult error;
    unsigned after;
    unsigned times;
    std::thread::id only;  // this thread's calls; none: all

    [[nodiscard]] bool is_for_this_thread() const
    {
        return only == std::thread::id{} || only == std::this_thread::get_id();
    }
};

struct state {
    std::mutex mutex;
    std::condition_variable changed;  // anything that someone may wait for

    bool initialised = false;
    bool gone = false;
    int version = 13000;
    std::size_t calls_when_gone = 0;
    std::map<std::string, std::size_t> calls;
    std::map<std::thread::id, std::map<std::string, std::size_t>> calls_by_thread;
    std::map<std::string, std::map<CUstream, std::size_t>> calls_by_stream;
    std::size_t (*allocation_counter)() = nullptr;
    std::size_t allocations = 0;  // going by it
    std::map<std::string, failure> failures;
    std::vector<std::string> violations;
    number next_handle = 0;
    std::set<number> past_handles;  // of memory, of contexts, and of what went with these
    std::set<number> given_up;      // by the program: of streams, events, graphs, libraries and their kernels

    std::vector<device> devices;
    std::map<number, std::shared_ptr<context>> contexts;
    std::map<number, std::shared_ptr<stream>> streams;
    std::map<number, std::shared_ptr<event>> events;
    std::map<number, std::shared_ptr<graph>> graphs;
    std::map<number, std::shared_ptr<graph const>> executable_graphs;
    std::map<number, std::map<std::string, number>> libraries;  // their kernels
    std::map<number, int> needed_versions;                      // of drivers, by library
    std::map<number, loaded_kernel> kernels;
    std::set<std::uint64_t> sums_in_use;  // addresses

    std::map<std::uint64_t, std::shared_ptr<region>> regions;  // by address
    std::deque<range> past_addresses;                          // kept from being given out again
    std::map<number, std::shared_ptr<physical>> physicals;
    std::map<std::pair<std::uint64_t, std::uint64_t>, exported_range> exports;  // by device and inode

    bool in_host_function = false;  // of any stream: one thread runs all of them
    bool all_held = false;
    bool capture_elsewhere = false;
    std::set<std::string> stalled;  // functions
    bool loading_waits = true;
    bool pointers_told = false;
    std::chrono::duration<double, std::nano> delay{};
    std::chrono::nanoseconds pinning = default_pinning;
    std::uint64_t written = 0;
    std::size_t pageable_copies = 0;

    state();
    number new_handle() { return next_handle += 16; }
    void violate(std::string what) { violations.push_back(std::move(what)); }
};

// Never destroyed: calls may come after main.
state& all();

// A thread's contexts; the last one is current. Without a destructor, as calls may come after those of thread-locals.
class context_list {
  public:
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] number back() const { return handles_.at(size_ - 1); }
    void push_back(number handle) { handles_.at(size_++) = handle; }
    void pop_back() noexcept { --size_; }
    void clear() noexcept { size_ = 0; }

  private:
    std::array<number, 64> handles_{};
    std::size_t size_ = 0;
};

// This thread's.
context_list& context_stack();

// What this thread minds of captures.
CUstreamCaptureMode& capture_mode();

// Whether this thread is in a host function.
bool& in_host_function();

// Whether this thread is in a call.
bool& in_call() noexcept;

// "cuMemAlloc_v2" and "cuMemAlloc" are the same function.
std::string plain_name(std::string name);

// What is allocated while it lives is the fake driver's doing. Under the lock.
class allocation_scope {
  public:
    explicit allocation_scope(state& s) : state_{s}, before_{count()} { in_call() = true; }
    allocation_scope(allocation_scope const&) = delete;
    allocation_scope& operator=(allocation_scope const&) = delete;
    ~allocation_scope()
    {
        in_call() = false;
        state_.allocations += count() - before_;
    }

  private:
    [[nodiscard]] std::size_t count() const
    {
        return state_.allocation_counter == nullptr ? 0 : state_.allocation_counter();
    }

    state& state_;
    std::size_t before_;
};

// What comes first in each call: counts it, and says whether it goes on.
CUresult begin_call(state& s, std::string const& name, bool needs_init);

// A function of CUDA: `body(state, guard, name)` runs under the lock.
template <class Body>
CUresult call(char const* function, Body body, bool needs_init = true)
{
    auto& s = all();
    guard lock{s.mutex};
    allocation_scope const allocations{s};
    auto const name = plain_name(function);
    if (auto const status = begin_call(s, name, needs_init); status != CUDA_SUCCESS)
        return status;
    s.changed.wait(lock, [&] { return !s.stalled.contains(name); });
    return body(s, lock, name);
}

// The current context, or null and the reason.
std::shared_ptr<context> current_context(state& s, std::string const& name, CUresult& status);

// A function that needs a current context: `body(state, guard, name, context)`. With `releases` it runs in a broken
// context too, and the error is reported all the same.
template <class Body>
CUresult call_in_context(char const* function, Body body, bool releases = false)
{
    return call(function, [&](state& s, guard& lock, std::string const& name) {
        auto status = CUDA_SUCCESS;
        auto const context = current_context(s, name, status);
        if (!context)
            return status;
        if (context->error != CUDA_SUCCESS && !releases)
            return context->error;
        status = body(s, lock, name, context);
        return status == CUDA_SUCCESS || status == CUDA_ERROR_NOT_READY
                   ? (context->error != CUDA_SUCCESS ? context->error : status)
                   : status;
    });
}

// A handle that was given up before, or that never was one. A driver follows it as a pointer.
[[noreturn]] void abort_of_handle(state const& s, std::string const& name, number handle);

// What a handle stands for, or null. A handle that went with its context is a violation; some drivers notice that.
// Handles of memory are numbers, which a driver looks up.
template <class Object, class Handle>
std::shared_ptr<Object> look_up(state& s, std::map<number, std::shared_ptr<Object>> const& in, Handle handle,
                                std::string const& name)
{
    auto const found = in.find(number_of(handle));
    if (found != in.end())
        return found->second;
    if (s.past_handles.contains(number_of(handle)))
        s.violate(name + " with a handle that was given up before");
    else if (std::is_pointer_v<Handle> && handle != Handle{})
        abort_of_handle(s, name, number_of(handle));
    return nullptr;
}

// A function that works on a stream: `body(state, guard, name, context, stream)`, with the current context.
template <class Body>
CUresult call_on_stream(char const* function, CUstream handle, Body body, bool releases = false);

// Contexts: fake_cuda_context.cpp
void break_now(state& s, context& of, CUresult error);
// Its streams, events and memory go with it. The lock is let go meanwhile.
void end_context(state& s, guard& lock, std::shared_ptr<context> of, bool complain);

// Memory: fake_cuda_memory.cpp
std::size_t page_size();
std::uint64_t address_of(void const* pointer);
// mmap, which throws.
void* map(void* at, std::size_t size, int protection, int flags, int descriptor = -1);
// Addresses that nothing can be done with; and the same in place of what is there.
std::byte* reserve(std::size_t size, std::size_t alignment);
void close_off(void* at, std::size_t size);
// Whether the device has so much memory left.
bool fits(state& s, int device, std::size_t size);
// Frees what starts at `address` and is of this kind, once its device has nothing to do.
CUresult free_region(state& s, guard& lock, std::string const& name, std::uint64_t address, region_kind kind,
                     CUresult if_unknown);
std::shared_ptr<region> find_region(state& s, std::uint64_t address);
// The CPU's view of a range that is all there, and open to `who`; else null.
struct reader {
    enum class kind { test, copy, kernel } is;
    context const* in = nullptr;  // of the stream that it runs on; not for tests
};
std::byte* translate(state& s, range const& addresses, reader who);
void count_written(state& s, std::uint64_t address, std::size_t size);
// The address is, or was, one that the driver gave out or registered.
bool is_known(state& s, std::uint64_t address);
void drop_region(state& s, std::uint64_t address);
// Before memory goes: queued work that uses it is a violation, and work that is under way is waited for. Whether
// nothing used it.
bool check_unused(state& s, guard& lock, range addresses, std::string const& name);

// Streams: fake_cuda_stream.cpp
// The stream, or null if there is none; the default streams are those of `current`.
std::shared_ptr<stream> find_stream(state& s, CUstream handle, std::shared_ptr<context> const& current,
                                    std::string const& name);
// Waits while the stream's queue is full: the lock is let go meanwhile.
std::shared_ptr<record> enqueue(state& s, guard& lock, stream& on, operation op);
// Until the record is done, or its context fails; returns the context's error.
CUresult wait_for(state& s, guard& lock, stream& on, std::shared_ptr<record> const& place);
// The same for all that streams of this context were given.
CUresult wait_for_all(state& s, guard& lock, std::shared_ptr<context> const& of);
// The same for all contexts of a device, whatever becomes of them.
void wait_for_device(state& s, guard& lock, int device);
// What a capture does not allow, and does not survive. Returns the error.
CUresult spoil_capture(state& s, std::string const& name, stream& of, CUresult error);
// On the stream's thread, without the lock: as long as moving the bytes is to take.
void take_time(stream& on, std::size_t bytes);
// Drops the streams' work, and joins their threads.
void end_streams(state& s, guard& lock, std::vector<std::shared_ptr<stream>> const& ending);
// Joins the threads of destroyed streams that are done.
void reap(state& s);

template <class Body>
CUresult call_on_stream(char const* function, CUstream handle, Body body, bool releases)
{
    auto const in_context = [&](state& s, guard& lock, std::string const& name,
                                std::shared_ptr<context> const& current) {
        auto const stream = find_stream(s, handle, current, name);
        if (!stream)
            return CUDA_ERROR_INVALID_HANDLE;
        ++s.calls_by_stream[name][handle];
        if (stream->of->error != CUDA_SUCCESS && !releases)
            return stream->of->error;
        if (stream->captured == capture::invalidated && !releases)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return body(s, lock, name, current, stream);
    };
    return call_in_context(function, in_context, releases);
}

}  // namespace fake_cuda::inside
