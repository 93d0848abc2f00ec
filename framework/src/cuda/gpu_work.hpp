// SPDX-License-Identifier: Apache-2.0
//
// Declares what the rest of the library uses of CUDA: work on streams, with no CUDA header. The files that include
// driver.hpp implement it, and absent.cpp does so for a library that is built without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <gpurx/error.hpp>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/views.hpp>

#include "memory/memory_state.hpp"

// What a CUcontext points to (CUDA driver API, cuda.h).
struct CUctx_st;

namespace gpurx::detail {

// A stream and the GPU that is meant where the stream is CUDA's default stream, which every context has: that of the
// calling thread's current context, if it is the GPU's, unless resolve() has noted which.
struct gpu_stream {
    int ordinal = no_gpu;
    cuda_stream_ref stream;
    CUctx_st* context = nullptr;

    friend bool operator==(gpu_stream const&, gpu_stream const&) = default;
};

// Whose memory, or pinned host memory, lies at an address.
struct gpu_place {
    int ordinal = no_gpu;         // no_gpu: none's, as far as is known
    CUctx_st* context = nullptr;  // the only one whose kernels reach it; null: any of the GPU's
};
[[nodiscard]] gpu_place place_of(std::uintptr_t address) noexcept;

// Notes the context, for an operation whose steps run on several threads. Fails where the stream cannot be used so:
// errc::wrong_gpu, errc::unusable_stream, what the driver reports.
[[nodiscard]] error_code resolve(gpu_stream& stream) noexcept;
// Loads the kernels for what is to be gathered on a resolved stream: that may wait for all streams of its context, and
// is soon done where memory of that GPU was made or adopted in the context.
void prepare_gather(gpu_stream const& on) noexcept;

// ---- streams ----

// Notes the context and the GPU of a stream, whichever GPU's it is. Fails where it is being captured, and where nobody
// can tell whose default stream is meant.
[[nodiscard]] error_code locate(gpu_stream& stream) noexcept;
// One that waits for no default stream. Throws system_error.
[[nodiscard]] CUstream_st* create_stream(int ordinal);
// What was enqueued on it is done first; nothing waits for that. Not null.
void destroy_stream(CUstream_st* stream) noexcept;
// Work enqueued on `later` from now on runs after what was enqueued on `earlier` so far. Both are located.
[[nodiscard]] error_code order(gpu_stream const& later, gpu_stream const& earlier) noexcept;

// ---- points in streams ----

// Work that was enqueued on one stream or several, to be waited for. Null: none.
struct stream_point;

// Memory for one point: who cannot fail when there is something to wait for has it from before.
class spare_point {
  public:
    spare_point() = default;
    spare_point(spare_point const&) = delete;
    spare_point& operator=(spare_point const&) = delete;
    ~spare_point();

    // There is one now. Throws std::bad_alloc.
    void provide();
    [[nodiscard]] stream_point* take() noexcept { return std::exchange(memory_, nullptr); }

  private:
    stream_point* memory_ = nullptr;
};

// Adds to `point` all that was enqueued on `on` so far. Never fails, allocates or waits. `spare`, which has been
// provided, may be used up.
void mark(stream_point*& point, gpu_stream on, spare_point& spare) noexcept;
// Whether all of it has finished, or never will because the GPU is in error: `point` is null then.
[[nodiscard]] bool has_passed(stream_point*& point) noexcept;
// Calls then(argument, error) when it has, from a thread of the library, or at once; the error is what the GPU reports
// if it is in error for good. Takes the point, which is not null.
enum class waiting_for : bool {
    pages,   // may learn of it some milliseconds late once it has waited for long
    stream,  // sooner
};
void when_passed(stream_point* point, void (*then)(void*, error_code) noexcept, void* argument,
                 waiting_for what) noexcept;
// For who can go on only when some stream has passed: none is asked for seldom now.
void look_at_streams() noexcept;

// ---- streams that do not keep up ----

// What reads of all flows have enqueued on one stream, as far as it is not done. A stream's queue has an end, and who
// enqueues beyond it is blocked. So reads stop long before: what arrives waits in the sockets, and makes fewer and
// larger batches later. Any thread.
class stream_backlog {
  public:
    // Commands between two points that are kept. A stream is full with as many behind the second as it takes, and no
    // more are enqueued while the first has not passed: about 400 of the 1,000 that a driver's queue takes, so that a
    // program's own find room.
    static constexpr std::size_t window = 192;

    stream_backlog() = default;
    stream_backlog(stream_backlog const&) = delete;
    stream_backlog& operator=(stream_backlog const&) = delete;

    // Reads must enqueue nothing now.
    [[nodiscard]] bool is_full() noexcept;
    // Writes to the eventfd `event`, once, when they may again. False: they may now.
    [[nodiscard]] bool notify(int event) noexcept;
    // Before the descriptor is closed.
    void forget(int event) noexcept;
    // So many commands were enqueued up to `behind`, which the caller is a holder of. Nothing is enqueued to know that:
    // of every window of commands a point is kept that somebody has recorded anyway.
    void add(std::size_t commands, stream_point& behind) noexcept;

  private:
    // With the mutex, as the next.
    [[nodiscard]] bool looks_full() noexcept;
    void add_waiter(int event) noexcept;
    static void on_passed(void* backlog, error_code) noexcept;

    std::mutex mutex_;               // guards what follows
    std::size_t open_ = 0;           // commands behind the last point that is kept
    stream_point* first_ = nullptr;  // behind a window of commands, and behind the next; null: not closed yet
    stream_point* second_ = nullptr;
    bool awaited_ = false;      // on_passed() will be called
    std::vector<int> waiters_;  // eventfds
};
// Of a resolved stream; lives until the process ends. Null: there was no memory for it, and nothing is bounded.
[[nodiscard]] stream_backlog* backlog_of(gpu_stream const& on) noexcept;

// ---- gather ----

// A gather reads aligned blocks of so many bytes: those that a fragment begins and ends in wholly.
inline constexpr std::size_t gather_block = 16;

// What is known of both ends of a gather, and who waits for it.
struct gather_source {
    memory_span memory{};                 // memory_state::known_to() the GPU
    CUctx_st* destination_of = nullptr;   // gpu_place::context
    stream_point** read_until = nullptr;  // all that was enqueued is added to it if there is no error
    stream_backlog* backlog = nullptr;    // the stream's; the same, if read_until is there
};

// Enqueues the copy of the fragments, in order, to the start of `destination` as far as both go; returns the bytes.
// Fragments on the host that the GPU cannot read are copied out of the way before it returns.
[[nodiscard]] std::size_t gather_on_gpu(std::span<fragment const> fragments, memory_span destination, gpu_stream on,
                                        gather_source const& from, error_code& code) noexcept;
// And their CRC32C into the four bytes at `crc`, which the GPU can write. All fragments have to be within its reach.
[[nodiscard]] std::size_t gather_crc32c_on_gpu(std::span<fragment const> fragments, memory_span destination,
                                               std::uintptr_t crc, gpu_stream on, error_code& code) noexcept;
// Copies the fragments, in order, to `destination` as far as both go, once what was enqueued on `after` (null: nothing)
// has run, and waits for it; returns the bytes.
[[nodiscard]] std::size_t copy_from_gpu(std::span<fragment const> fragments, std::span<std::byte> destination,
                                        int ordinal, cuda_stream_ref const* after, error_code& code) noexcept;

// ---- staging ----

// Pinned host memory that one flow receives into on the way to a GPU: while one chunk crosses PCIe, recv fills the
// next. One thread at a time.
class staging {
  public:
    // For this GPU. Throws system_error and std::bad_alloc.
    explicit staging(int ordinal);
    staging(staging const&) = delete;
    staging& operator=(staging const&) = delete;
    // What is under way still arrives.
    ~staging();

    // Bytes that recv may write now and that copy() will send along `on`; empty: all chunks are under way.
    [[nodiscard]] std::span<std::byte> room(gpu_stream on, error_code& code);
    // Enqueues the copy of the next `size` bytes of room() to `address` on the GPU, and adds it to the stream's
    // `backlog`, if any. Does not wait.
    [[nodiscard]] error_code copy(std::uintptr_t address, std::size_t size, stream_backlog* backlog = nullptr) noexcept;
    // Writes to the eventfd `event`, once, when there is room. False: there is room now.
    [[nodiscard]] bool notify(int event) noexcept;

  private:
    struct chunk;
    struct ring;

    // What was filled is on its way, and comes back by itself.
    void send_off() noexcept;
    // Has arrived() called for all that are under way, and `event` written to by the first. With an event and an idle
    // chunk: false, and nothing is arranged.
    bool await_all(int event) noexcept;
    // On the thread that watches streams.
    static void arrived(void* chunk, error_code) noexcept;
    // With the mutex.
    [[nodiscard]] static bool is_idle(chunk& each) noexcept;
    // Null: all are under way, or an error.
    [[nodiscard]] chunk* find_idle(error_code& code);

    std::shared_ptr<ring> ring_;
    cuda_stream_ref own_;  // the GPU's stream for copies
    chunk* filling_ = nullptr;
    std::size_t filled_ = 0;
    gpu_stream on_;
    spare_point spare_;  // for what the chunk is filled with
};

// The stream that fills the memory of session GPUs, in the order of the calls of all flows.
[[nodiscard]] gpu_stream copy_stream_of(int ordinal, error_code& code) noexcept;

// Null with an error.
[[nodiscard]] std::unique_ptr<staging> make_staging(int ordinal, error_code& code) noexcept;

}  // namespace gpurx::detail
