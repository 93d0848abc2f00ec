// SPDX-License-Identifier: Apache-2.0
//
// tensor_stream: rows of tensors from many senders, as batches in a GPU's memory or the host's.
//
// The senders speak the protocol of docs/tensor-stream.md: frames, each a block of rows of one or more named tensors.
// All frames of a stream have the same tensors; how many rows a frame has is the sender's choice. Rows are put together
// to batches of `batch_size`, whichever frames they came in.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_immediate_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <gpurx/detail/initiation.hpp>
#include <gpurx/ingest/tensor_spec.hpp>
#include <gpurx/session.hpp>
#include <gpurx/use_awaitable.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest {

namespace detail {
class batch_pool;
class ready_batches;
class stream_state;
struct block;
}  // namespace detail

// How far a source is.
struct source_position {
    std::uint32_t source = 0;
    std::uint32_t sender = 0;       // which one of this number: a random one that it keeps; 0: none has said
    std::uint64_t frame = 0;        // the sequence of the first frame that is not all taken
    std::uint64_t row = 0;          // of that frame: so many rows are
    std::uint64_t epoch_frame = 0;  // the first of this epoch
    bool epoch_ended = false;       // its last frame of this epoch is taken
    bool ended = false;             // its last frame of all is

    friend bool operator==(source_position const&, source_position const&) = default;
};

// A place between two batches of a stream, where another stream can begin: the process may have been started again.
struct stream_position {
    std::uint64_t epoch = 0;
    // With tensor_stream_options::shuffle: which window of this epoch it is, and how many of its batches are taken. The
    // sources are where it begins.
    std::uint64_t window = 0;
    std::uint64_t batches = 0;
    std::vector<source_position> sources{};  // of the process' own, in the order of their numbers. Empty: at the begin

    friend bool operator==(stream_position const&, stream_position const&) = default;
};

// One tensor of a batch. It has no owner: the batch has.
struct tensor {
    std::string name;
    dtype type = dtype::u8;
    std::vector<std::uint64_t> shape;  // the first dimension is the number of rows
    memory_span bytes;                 // contiguous, row-major; begins at a multiple of 256
};

// Some rows of all tensors, in memory that goes back to its stream's pool when this dies. Move-only.
// Default-constructed and moved-from batches are empty.
//
// Lifetime: independent of the tensor_stream, its session and the io_context; destroy them in any order. Thread safety:
// destroying it and release_after() are safe in any thread, need no executor and never throw; two calls on one batch at
// the same time are not safe.
//
// In a GPU's memory: the bytes are there for work that is enqueued on tensor_stream_options::stream from now on; any
// other stream has to be ordered after that one (order_after, cuda_stream.hpp). The memory is used again once work
// enqueued on that stream until the batch died has finished.
class batch {
  public:
    batch() noexcept;
    batch(batch&& other) noexcept;
    batch& operator=(batch&& other) noexcept;
    ~batch();

    [[nodiscard]] bool empty() const noexcept { return rows_ == 0; }
    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    // In the order in which the first frame had them. Valid until the batch is released, moved from or destroyed.
    [[nodiscard]] std::span<tensor const> tensors() const noexcept { return tensors_; }
    [[nodiscard]] tensor const* find(std::string_view name) const noexcept;
    // Throws std::out_of_range if there is none of this name.
    [[nodiscard]] tensor const& operator[](std::string_view name) const;

    // Behind the last row of this batch. Also of an empty one that async_next completed with at the end of an epoch
    // or of the stream; of others that of a stream's begin. It stays when the batch is released.
    [[nodiscard]] stream_position position() const;

    // Gives the memory back once all work that was enqueued on `stream` so far has finished; the batch is empty at
    // once. For a program that works on it on another stream than the options'. In host memory: now. A stream that is
    // being captured cannot be waited for: such memory is not used again.
    void release_after(cuda_stream_ref stream) noexcept;

  private:
    friend class detail::stream_state;
    friend class detail::ready_batches;
    using shared_position = std::shared_ptr<stream_position const>;
    batch(std::shared_ptr<detail::batch_pool> pool, std::unique_ptr<detail::block> memory, std::size_t rows,
          std::vector<tensor> tensors, cuda_stream_ref stream, shared_position position) noexcept;

    std::shared_ptr<detail::batch_pool> pool_;
    std::unique_ptr<detail::block> memory_;
    std::size_t rows_ = 0;
    std::vector<tensor> tensors_;
    cuda_stream_ref stream_;
    shared_position position_;
};

// In which order the frames of several sources become rows of batches.
enum class frame_order : std::uint8_t {
    as_they_come,  // the first that is complete. A slow source holds up nobody
    rounds,        // the first frame of each source, in the order of their numbers, then the second of each, and so on;
                   // a source that has ended is left out. The same frames give the same batches in every run, and all
                   // wait for the slowest
};

// When a sender is told that it need not keep a frame any longer. (One that speaks the protocol's version 1 is told
// as it asks for it, and always as with `received`.)
enum class acknowledge_when : std::uint8_t {
    received,  // its bytes are in the memory of this process, and are right
    taken,     // all its rows are in batches that async_next has given
    saved,     // tensor_stream::acknowledge() was given a position behind it
};

// A source, or somebody who connected, was not received to the end. The others go on.
struct source_error {
    std::optional<std::uint32_t> source;  // none: it sent no frame from which one could know
    asio::ip::tcp::endpoint peer;         // the last one; default-constructed: never connected
    // errc::bad_frame, wrong_checksum or stream_cut: the source has ended, and what it sent before is delivered. (A
    // wrong checksum only where the sender does not keep the frame: of the protocol's version 1.)
    // wrong_source: rows are lost, as somebody sends who is none of the sources, or is a second one of that number.
    // wrong_secret, and others, for those who are no source: what the connection reported.
    error_code code;
    diagnostics why;  // describe(code, why) is one sentence that names source and peer
};

struct tensor_stream_options {
    // Either: where to listen. Senders connect, and say in each frame which source they are.
    std::vector<asio::ip::tcp::endpoint> listen{};
    // How many sources there are, with those of other ranks: numbers from 0. Only with `listen`.
    std::uint32_t sources = 1;
    // Or: where the sources listen. Source i is the one at connect[i].
    std::vector<asio::ip::tcp::endpoint> connect{};

    // This process receives the sources whose number modulo world_size is rank, as torchrun's RANK and WORLD_SIZE. The
    // processes need not know of each other. One without a source is at the end of its stream at once.
    std::uint32_t rank = 0;
    std::uint32_t world_size = 1;

    std::size_t batch_size = 64;  // rows
    bool drop_last = false;       // a last batch with fewer rows is not delivered
    // Batches that are ready, or being filled, before anybody asks for them. When there are so many, frames wait, and
    // soon the senders do: TCP stops them.
    std::size_t queue_depth = 2;
    frame_order order = frame_order::as_they_come;
    acknowledge_when acknowledge = acknowledge_when::received;
    // Where to go on: the batches are those that would have followed, as far as the sources send the same frames, and
    // in as_they_come up to the order in which they come. Rows before it are not asked for, or dropped. It has to
    // have all sources of this process; others in it are not looked at.
    stream_position position{};

    // Rows within which the order of rows is mixed, rounded up to whole batches; 0: it is that of the frames. It
    // depends on seed and epoch, and on which rows come, which takes frame_order::rounds if there are several
    // sources. So many rows are in memory besides the queue, and handed out once they are there; each is copied by
    // itself.
    std::size_t shuffle = 0;
    std::uint64_t seed = 0;

    // What senders have to know, and have to be shown that this end knows: at least 16 bytes, that nobody can guess.
    // Who does not prove it is let go before anything of him is read but that. Empty: everybody is let in. It says
    // who connects; what then goes over the network can be read, and changed, by those who can do that.
    std::string secret{};

    // The GPU (CUDA ordinal) in whose memory the batches are; -1: in the host's. It need not be where
    // the session's memory is.
    int gpu = -1;
    // Where the program works on the batches, if they are on a GPU; empty: CUDA's default stream. Must outlive the
    // tensor_stream and its batches. Nothing of ours is ever waited for on it but the batches handed out.
    cuda_stream_ref stream{};

    // How long a source may be without a connection: at first, and after it has lost one. Then it ends with
    // errc::stream_cut. Zero: at first, without limit; later, it ends at once.
    std::chrono::milliseconds start_timeout{std::chrono::minutes{5}};
    std::chrono::milliseconds reconnect_timeout{std::chrono::seconds{30}};
    // How long a connection may bring nothing while it is read: a process that is stopped or stuck keeps it alive. Then
    // it is closed, and its source may come again as after any other loss. The time that frames wait for room in the
    // queue does not count. Zero: without limit.
    std::chrono::milliseconds stall_timeout{std::chrono::minutes{5}};

    // Frames that ask for more are refused with errc::bad_frame. frame_size: at most 4 GiB.
    frame_limits limits{};
    std::uint64_t max_batch_size = std::uint64_t{4} << 30;  // bytes of a batch
    // What a frame must hold. Empty: what the first frame holds, whose CRC32C, if it has one, is right.
    std::vector<tensor_spec> tensors{};

    // Told of each source_error, on the stream's executor; must not throw. Empty: errors() tells.
    std::function<void(source_error const&)> on_error{};
};

// By value, at one moment.
struct tensor_stream_stats {
    std::uint64_t connections = 0;  // that there were
    std::uint64_t frames = 0;       // whose rows went into batches
    std::uint64_t duplicates = 0;   // dropped: they came again after a source had lost its connection
    std::uint64_t damaged = 0;      // whose CRC32C was wrong, and which were sent again through another connection
    std::uint64_t rows = 0;
    std::uint64_t payload_bytes = 0;
    std::uint64_t batches = 0;  // handed out
    // Bytes of memory for frames and batches, now and at most. At most one frame for each connection, and queue_depth
    // batches besides those that the program has.
    std::uint64_t memory = 0;
    std::uint64_t memory_high_water = 0;
};

// Receives as soon as it is made, whether or not anybody asks for a batch, until the queue is full. Each connection is
// read by a coroutine on a strand of its own; one more strand puts rows into batches. All of them run on `executor`:
// with a thread pool's, connections are received and checked in parallel.
//
// Bytes go from the session's memory to memory for one frame of that connection, are checked there (CRC32C, on the GPU
// if they are on one), acknowledged if the sender asks for it, and copied into their batches. A frame that is cut or
// wrong leaves no row behind.
//
// Lifetime: the session must outlive the tensor_stream, or close(). Its options::max_flows is the most connections at
// one time: give it some more than there are sources, so that one which comes back finds a place. Where there is none,
// a connection whose first frame has not come makes place, the oldest first: probes and scanners keep out nobody. No
// more than the sources of this rank and four strangers wait to be accepted; who else connects has to try again, which
// TCP does after a second. The tensor_stream must be destroyed before its execution context, or as a part of what is
// in it. Batches may outlive both.
//
// Thread safety: all members may be called at the same time, but for moving and destroying.
class tensor_stream {
  public:
    using executor_type = asio::any_io_executor;

    // Throws system_error: EINVAL for options that contradict themselves, with the text saying which; what listening or
    // steering to the session reports; errc::no_cuda.
    tensor_stream(executor_type executor, rx_session& session, tensor_stream_options options);
    template <class ExecutionContext>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> tensor_stream(
        ExecutionContext& context, rx_session& session, tensor_stream_options options)
        : tensor_stream(executor_type{context.get_executor()}, session, std::move(options))
    {}
    tensor_stream(tensor_stream&&) noexcept;
    tensor_stream& operator=(tensor_stream&&) noexcept;
    // As close().
    ~tensor_stream();

    [[nodiscard]] executor_type get_executor() const noexcept;
    // Where it listens: with the port, where the options left that to the system. Empty with options::connect.
    [[nodiscard]] std::vector<asio::ip::tcp::endpoint> local_endpoints() const;
    // Those who failed so far: all sources, and the last 64 of others, of which errc::wrong_source is kept the longest.
    [[nodiscard]] std::vector<source_error> errors() const;
    [[nodiscard]] tensor_stream_stats stats() const;

    // With acknowledge_when::saved: what stands before this position is kept elsewhere, or was used for good. One
    // before that of an earlier call does nothing.
    void acknowledge(stream_position const& until);

    // Closes all connections, and drops what is not handed out. A pending async_next, and every later one, completes
    // with operation_aborted. The coroutines end as soon as the executor runs.
    void close() noexcept;

    // The next batch.
    //
    // Signature: void(error_code, batch). The rules of receiver.hpp hold: the handler runs on its associated executor,
    //   never inside the initiating function.
    // Per-operation cancellation: terminal, partial, total. operation_aborted: no batch was taken.
    // Errors: errc::epoch_ended, with an empty batch, between the last batch of an epoch and the first of the next: all
    //   sources have said so, or have ended. asio::error::eof when all sources have ended, well or not (errors()
    //   tells), and ever after. Connections stay for as long as it takes to acknowledge their last frame, and until
    //   their sender has seen that. What keeps the stream itself from going on: ENOMEM, what the CUDA driver reports;
    //   ever after as well.
    // Several may be pending; which of them gets the next batch is not said.
    // Cost: no copy. With a GPU two calls of the driver.
    template <asio::completion_token_for<void(error_code, batch)> Token = use_awaitable_t>
    auto async_next(Token&& token = Token());

  private:
    std::shared_ptr<detail::stream_state> state_;
};

namespace detail {

// Batches between the strand that fills them and whoever asks for them. Thread safety: any call at any time.
class ready_batches {
  public:
    ready_batches(asio::any_io_executor const& executor, cuda_stream_ref filled_on, cuda_stream_ref consumer);

    // Whether there is something to complete with.
    [[nodiscard]] bool take(error_code& code, batch& result) noexcept;
    // The operation is called when there may be; false: there is already, and it was left alone.
    template <class Operation>
    [[nodiscard]] bool wait(Operation& operation)
    {
        std::scoped_lock const lock{mutex_};
        if (!batches_.empty() || end_)
            return false;
        wake_.async_wait(std::move(operation));
        return true;
    }

    void put(batch next);
    // Behind the batches that are here.
    void put_end_of_epoch(std::shared_ptr<stream_position const> position);
    // After those that are here. An error overrides the end of the stream, and operation_aborted everything.
    void end(error_code why, std::shared_ptr<stream_position const> position = {}) noexcept;
    // Not at the end of the stream, but with an error.
    [[nodiscard]] bool has_failed() const;
    void drop() noexcept;
    [[nodiscard]] std::size_t size() const;
    [[nodiscard]] std::uint64_t taken() const;
    // Behind what was taken last. Null: nothing was.
    [[nodiscard]] std::shared_ptr<stream_position const> position() const;
    // Called, from whoever takes a batch, when there is room for another, the end was seen, or an error. Before the
    // first use of anything above.
    void notify(std::function<void()> on_room) { on_room_ = std::move(on_room); }

  private:
    cuda_stream_ref filled_on_;
    cuda_stream_ref consumer_;
    std::function<void()> on_room_;
    mutable std::mutex mutex_;   // guards everything below
    asio::steady_timer wake_;    // never expires
    std::deque<batch> batches_;  // an empty one is the end of an epoch
    std::optional<error_code> end_;
    std::shared_ptr<stream_position const> end_position_;
    bool end_seen_ = false;
    std::uint64_t taken_ = 0;
    std::shared_ptr<stream_position const> position_;
};

struct next_op {
    std::shared_ptr<ready_batches> from;
    bool begun = false;

    template <class Self>
    void operator()(Self& self, error_code = {})
    {
        if (!begun) {
            begun = true;
            self.reset_cancellation_state(asio::enable_total_cancellation());
            auto const immediate = asio::get_associated_immediate_executor(self, self.get_io_executor());
            return asio::dispatch(immediate, std::move(self));
        }
        error_code code;
        batch result;
        auto const ready = from;  // lives on in what *this is moved to
        do {
            if (ready->take(code, result))
                return self.complete(code, std::move(result));
            if (self.cancelled() != asio::cancellation_type::none)
                return self.complete(asio::error::operation_aborted, batch{});
        } while (!ready->wait(self));
    }
};

[[nodiscard]] std::shared_ptr<ready_batches> batches_of(std::shared_ptr<stream_state> const& stream) noexcept;
// Makes the exception of a failed co_await (use_awaitable.hpp).
[[nodiscard]] std::exception_ptr failure_of(std::shared_ptr<ready_batches> const& from, error_code code) noexcept;

}  // namespace detail

template <asio::completion_token_for<void(error_code, batch)> Token>
auto tensor_stream::async_next(Token&& token)
{
    auto const own = get_executor();
    return asio::async_initiate<Token, void(error_code, batch)>(
        gpurx::detail::initiation{own,
                                  [own](auto from, auto /*site*/, auto&& handler) {
                                      using handler_type = std::decay_t<decltype(handler)>;
                                      asio::async_compose<handler_type, void(error_code, batch)>(
                                          detail::next_op{std::move(from)}, handler, own);
                                  }},
        token, detail::batches_of(state_));
}

}  // namespace gpurx::ingest
