// SPDX-License-Identifier: Apache-2.0
//
// The interface to CUDA for the rest of the library: work on streams, without a CUDA header. The files that include
// driver.hpp implement it. absent.cpp implements it for builds without CUDA.
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

// A CUcontext points to it (CUDA driver API, cuda.h).
struct CUctx_st;

namespace gpurx::detail {

// A stream and, for CUDA's default stream, its GPU. Every context has a default stream. The calling thread's current
// context selects it if that belongs to the GPU, unless resolve() has noted a context.
struct gpu_stream {
    int ordinal = no_gpu;
    cuda_stream_ref stream;
    CUctx_st* context = nullptr;

    friend bool operator==(gpu_stream const&, gpu_stream const&) = default;
};

// The GPU that owns memory, or pinned host memory, at an address.
struct gpu_place {
    int ordinal = no_gpu;         // no_gpu: no known GPU
    CUctx_st* context = nullptr;  // the only context whose kernels reach it; null: any of the GPU
};
[[nodiscard]] gpu_place place_of(std::uintptr_t address) noexcept;

// Notes the context, for an operation whose steps run on several threads. Fails if such an operation cannot use the
// stream: errc::wrong_gpu, errc::unusable_stream, the driver's errors.
[[nodiscard]] error_code resolve(gpu_stream& stream) noexcept;
// Loads the kernels for gathers on a resolved stream. That may wait for all streams of its context. It is fast if
// memory of that GPU was made or adopted in the context.
void prepare_gather(gpu_stream const& on) noexcept;

// ---- streams ----

// Notes the context and the GPU of a stream of any GPU. Fails if the stream is being captured, or if the context of a
// default stream is ambiguous.
[[nodiscard]] error_code locate(gpu_stream& stream) noexcept;
// Returns a new stream that waits for no default stream. Throws system_error.
[[nodiscard]] CUstream_st* create_stream(int ordinal);
// Destroys the stream after its enqueued work, without waiting. Not null.
void destroy_stream(CUstream_st* stream) noexcept;
// Returns whether create_stream() has returned the stream, and destroy_stream() was not called since.
[[nodiscard]] bool is_owned_stream(CUstream_st* stream) noexcept;
// Orders later work on `later` after earlier work on `earlier`. Precondition: both are located.
[[nodiscard]] error_code order(gpu_stream const& later, gpu_stream const& earlier) noexcept;

// ---- points in streams ----

// A point behind work that was enqueued on one stream or several. Null: none.
struct stream_point;

// Memory for one point, allocated in advance for callers that must not fail later.
class spare_point {
  public:
    spare_point() = default;
    spare_point(spare_point const&) = delete;
    spare_point& operator=(spare_point const&) = delete;
    ~spare_point();

    // Makes sure that there is one. Throws std::bad_alloc.
    void provide();
    [[nodiscard]] stream_point* take() noexcept { return std::exchange(memory_, nullptr); }

  private:
    stream_point* memory_ = nullptr;
};

// Adds all work enqueued on `on` so far to `point`. Never fails, allocates or waits. It may use up `spare`.
// Precondition: spare.provide().
void mark(stream_point*& point, gpu_stream on, spare_point& spare) noexcept;
// Returns whether all work of `point` has finished, or never will because the GPU is in an error state. `point` is then
// null.
[[nodiscard]] bool has_passed(stream_point*& point) noexcept;
// Calls then(argument, error) when the point has passed, from a thread of the library, or at once. The error is the
// GPU's permanent error, if any. Takes the point, which is not null.
enum class waiting_for : std::uint8_t {
    pool_pages,  // may be a millisecond late, and more after a long wait; look_at_streams() makes them `pages`
    pages,       // of a NIC, whose lack nobody reports: sooner, but some milliseconds late after a long wait
    stream,      // sooner
};
void when_passed(stream_point* point, void (*then)(void*, error_code) noexcept, void* argument,
                 waiting_for what) noexcept;
// Polls all streams often now, because the caller can only continue when a stream has passed. Whoever lacks pages of a
// pool must call it.
void look_at_streams() noexcept;

// ---- streams that do not keep up ----

// Unfinished commands that reads of all flows have enqueued on one stream. A stream's queue is limited, and a call that
// exceeds it blocks. So reads stop far below the limit. Arriving bytes then wait in the sockets, and make fewer and
// larger batches later. Any thread.
class stream_backlog {
  public:
    // Number of commands between two kept points. A stream is full with that many behind the second point, until the
    // first point has passed. So reads use about 400 of the 1,000 commands of a driver's queue, and leave room for the
    // program's own.
    static constexpr std::size_t window = 192;

    stream_backlog() = default;
    stream_backlog(stream_backlog const&) = delete;
    stream_backlog& operator=(stream_backlog const&) = delete;

    // Returns whether reads must enqueue nothing now.
    [[nodiscard]] bool is_full() noexcept;
    // Writes to the eventfd `event`, once, when reads may enqueue again. Returns false if they may now.
    [[nodiscard]] bool notify(int event) noexcept;
    // Call it before the descriptor is closed.
    void forget(int event) noexcept;
    // Notes `commands` enqueued up to `behind`, which the caller holds. It enqueues nothing: of each window of commands
    // it keeps a point that was recorded anyway.
    void add(std::size_t commands, stream_point& behind) noexcept;

  private:
    // Returns the first point, held, if the second one is closed; otherwise null.
    [[nodiscard]] stream_point* hold_first() noexcept;
    // The caller holds the mutex.
    void add_waiter(int event) noexcept;
    static void on_passed(void* backlog, error_code) noexcept;

    std::mutex mutex_;               // guards the members below
    std::size_t open_ = 0;           // commands behind the last point that is kept
    stream_point* first_ = nullptr;  // behind a window of commands, and behind the next; null: not closed yet
    stream_point* second_ = nullptr;
    bool awaited_ = false;      // on_passed() will be called
    std::vector<int> waiters_;  // eventfds
};
// Returns the backlog of a resolved stream; it lives until the process ends. Null if memory ran out; the stream is then
// not bounded.
[[nodiscard]] stream_backlog* backlog_of(gpu_stream const& on) noexcept;

// ---- gather ----

// Size of the aligned blocks that a gather reads. It reads all of the blocks in which a fragment begins and ends.
inline constexpr std::size_t gather_block = 16;

// Known facts about both ends of a gather, and its waiters.
struct gather_source {
    memory_span memory{};                 // memory_state::known_to() the GPU
    CUctx_st* destination_of = nullptr;   // gpu_place::context
    stream_point** read_until = nullptr;  // on success the enqueued work is added to it
    stream_backlog* backlog = nullptr;    // the stream's; on success, if read_until is set, likewise
};

// Enqueues the copy of the fragments, in order, to the start of `destination`, up to the smaller size; returns the
// bytes. Before it returns, it copies host fragments that the GPU cannot read to other memory.
[[nodiscard]] std::size_t gather_on_gpu(std::span<fragment const> fragments, memory_span destination, gpu_stream on,
                                        gather_source const& from, error_code& code) noexcept;
// Also computes their CRC32C into the four bytes at `crc`, which the GPU can write. The GPU must be able to read all
// fragments.
[[nodiscard]] std::size_t gather_crc32c_on_gpu(std::span<fragment const> fragments, memory_span destination,
                                               std::uintptr_t crc, gpu_stream on, error_code& code) noexcept;
// Copies the fragments, in order, to `destination`, up to the smaller size, after the work enqueued on `after` (null:
// none), and waits for the copy. Returns the bytes.
[[nodiscard]] std::size_t copy_from_gpu(std::span<fragment const> fragments, std::span<std::byte> destination,
                                        int ordinal, cuda_stream_ref const* after, error_code& code) noexcept;

// ---- staging ----

// Pinned host memory of one flow on the way to a GPU. While one chunk crosses PCIe, recv fills the next. One thread at
// a time.
class staging {
  public:
    // Makes staging memory for this GPU. Throws system_error and std::bad_alloc.
    explicit staging(int ordinal);
    staging(staging const&) = delete;
    staging& operator=(staging const&) = delete;
    // Unfinished copies still complete.
    ~staging();

    // Returns bytes that recv may fill now, for copy() on `on`; empty if all chunks are being copied.
    [[nodiscard]] std::span<std::byte> room(gpu_stream on, error_code& code);
    // Takes the next `size` bytes of room() for `address` on the GPU. Adjacent bytes cross in one copy. It is enqueued
    // when the chunk is full, or by flush(), and then added to the stream's `backlog`, if any. Does not wait. After an
    // error the held bytes are lost.
    [[nodiscard]] error_code copy(std::uintptr_t address, std::size_t size, stream_backlog* backlog = nullptr) noexcept;
    // Enqueues the copy of the bytes that are held.
    [[nodiscard]] error_code flush() noexcept;
    // Returns the number of bytes whose copy is not enqueued yet.
    [[nodiscard]] std::size_t held() const noexcept { return held_; }
    // Returns whether the bytes that are held can go with others for `on`.
    [[nodiscard]] bool is_for(gpu_stream const& on) const noexcept { return on == on_; }
    // Writes to the eventfd `event`, once, when there is room. Returns false if there is room now.
    [[nodiscard]] bool notify(int event) noexcept;

  private:
    struct chunk;
    struct ring;

    [[nodiscard]] error_code flush(spare_point& spare) noexcept;
    // Ends the filling of the present chunk. The chunk is free again when its copies have passed.
    void send_off() noexcept;
    // Adds the work on the GPU's stream for copies to the present chunk.
    void mark_own() noexcept;
    // Has arrived() called for all chunks that are being copied; the first writes to `event`. With an event and an idle
    // chunk it returns false and does nothing.
    bool await_all(int event) noexcept;
    // Runs on the thread that watches streams.
    static void arrived(void* argument, error_code) noexcept;
    // The caller holds the mutex.
    [[nodiscard]] static bool is_idle(chunk& each) noexcept;
    // Returns null if all chunks are being copied, or on an error.
    [[nodiscard]] chunk* find_idle(error_code& code);

    std::shared_ptr<ring> ring_;
    cuda_stream_ref own_;  // the GPU's stream for copies
    chunk* filling_ = nullptr;
    std::size_t filled_ = 0;
    std::size_t held_ = 0;         // the last of these, whose copy is not enqueued yet
    std::uintptr_t held_for_ = 0;  // where they go
    stream_backlog* backlog_ = nullptr;
    gpu_stream on_;
    // Between two calls of room() two copies can need one each: of bytes that others do not follow, and of the others.
    spare_point spare_;
    spare_point spare_for_break_;
};

// Returns the stream that fills the memory of session GPUs, in the order of the calls of all flows.
[[nodiscard]] gpu_stream copy_stream_of(int ordinal, error_code& code) noexcept;

// Returns null on an error.
[[nodiscard]] std::unique_ptr<staging> make_staging(int ordinal, error_code& code) noexcept;

}  // namespace gpurx::detail
