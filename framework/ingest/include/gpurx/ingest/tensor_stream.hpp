// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Streams of tensors: rows from many senders, in batches.
///
/// The senders speak the protocol of docs/tensor-stream.md. They send frames, each a block of rows of one or more named
/// tensors. All frames of a stream have the same tensors. The sender chooses the number of rows of a frame. The stream
/// forms batches of `batch_size` rows in memory of a GPU or the host, whatever the frames of the rows.
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

/// @brief Progress of a source.
struct source_position {
    /// @brief Number of the source.
    std::uint32_t source = 0;
    /// @brief Random number of the source's sender. 0: no sender has sent one.
    ///
    /// A sender keeps its number.
    std::uint32_t sender = 0;
    std::uint64_t frame = 0;        ///< Sequence of the first frame with rows not taken.
    std::uint64_t row = 0;          ///< Rows of that frame that are taken.
    std::uint64_t epoch_frame = 0;  ///< Sequence of the first frame of this epoch.
    bool epoch_ended = false;       ///< Whether its last frame of this epoch is taken.
    bool ended = false;             ///< Whether its last frame is taken.

    friend bool operator==(source_position const&, source_position const&) = default;
};

/// @brief A place between two batches of a stream.
///
/// Another stream can begin there, such as that of a restarted process.
struct stream_position {
    /// @brief Number of the epoch.
    std::uint64_t epoch = 0;
    /// @brief With tensor_stream_options::shuffle, the window of this epoch.
    ///
    /// `sources` then has the positions at the beginning of the window.
    std::uint64_t window = 0;
    /// @brief With tensor_stream_options::shuffle, the batches taken from the window.
    std::uint64_t batches = 0;
    /// @brief Positions of the process' own sources, ordered by number.
    ///
    /// Empty at the beginning.
    std::vector<source_position> sources{};

    friend bool operator==(stream_position const&, stream_position const&) = default;
};

/// @brief One tensor of a batch. The batch owns the bytes.
struct tensor {
    std::string name;                  ///< Name.
    dtype type = dtype::u8;            ///< Type of the elements.
    std::vector<std::uint64_t> shape;  ///< Shape. The first dimension is the number of rows.
    memory_span bytes;                 ///< Contiguous, row-major bytes, which begin at a multiple of 256.
};

/// @brief A move-only batch of rows of all tensors.
///
/// Its memory returns to the stream's pool at destruction.
///
/// Default-constructed and moved-from batches are empty.
///
/// @par Lifetime
/// A batch is independent of the tensor_stream, its session and the `io_context`. They may be destroyed in any order.
///
/// @par Thread safety
/// The destructor and release_after() are safe from any thread. They need no executor and never throw. Two simultaneous
/// calls on one batch are unsafe.
///
/// @par Memory of a GPU
/// The bytes are valid for later work on the CUDA stream `tensor_stream_options::stream`. Order any other CUDA stream
/// after that one (order_after(), cuda_stream.hpp). The tensor_stream reuses the memory when work that was enqueued on
/// that CUDA stream before the batch's destruction has finished.
class batch {
  public:
    /// @brief Constructs an empty batch.
    batch() noexcept;
    /// @brief Moves the rows; `other` is empty afterwards.
    batch(batch&& other) noexcept;
    /// @brief Releases the present rows and moves those of `other`, which is empty afterwards.
    batch& operator=(batch&& other) noexcept;
    /// @brief Returns the memory to the pool.
    ~batch();

    /// @brief Returns whether the batch has no rows.
    [[nodiscard]] bool empty() const noexcept { return rows_ == 0; }
    /// @brief Returns the number of rows.
    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    /// @brief Returns the tensors in the order of the first frame.
    ///
    /// @par Lifetime
    /// The span is valid until the batch is released, moved from or destroyed.
    [[nodiscard]] std::span<tensor const> tensors() const noexcept { return tensors_; }
    /// @brief Returns the tensor of a name; null if the batch has none.
    [[nodiscard]] tensor const* find(std::string_view name) const noexcept;
    /// @brief Returns the tensor of a name.
    /// @throws std::out_of_range If the batch has no tensor of this name.
    [[nodiscard]] tensor const& operator[](std::string_view name) const;

    /// @brief Returns the position behind the last row of this batch.
    ///
    /// An empty batch of async_next(), at the end of an epoch or of the stream, has a position too. Other empty batches
    /// have the position of a stream's beginning. The position stays when the batch is released.
    [[nodiscard]] stream_position position() const;

    /// @brief Returns the memory once all work enqueued on `stream` so far has finished.
    ///
    /// The batch is empty at once. Use the call if the program works on the batch on another stream than that of the
    /// options. Host memory returns immediately. If the stream is being captured, the pool cannot wait for it, and
    /// never reuses the memory.
    ///
    /// @param stream Stream of the reading work.
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

/// @brief Order in which frames of several sources become rows of batches.
enum class frame_order : std::uint8_t {
    /// @brief The first complete frame comes first. A slow source does not delay others.
    as_they_come,
    /// @brief One frame of each source in turn, in the order of their numbers.
    /// @details The first frame of each source is followed by the second of each, and so on. The order skips sources
    /// that have ended. The same frames give the same batches in every run. All sources wait for the slowest.
    rounds,
};

/// @brief Time at which the stream acknowledges a frame.
///
/// The sender need not keep an acknowledged frame.
///
/// A sender of version 1 of the protocol gets acknowledgements if it requests them, and always as with `received`.
enum class acknowledge_when : std::uint8_t {
    received,  ///< The frame is in the memory of this process, and its bytes are right.
    taken,     ///< All rows of the frame are in batches that async_next() has returned.
    saved,     ///< The program called tensor_stream::acknowledge() with a position behind the frame.
};

/// @brief Failure of a source, or of another peer. The other sources continue.
struct source_error {
    std::optional<std::uint32_t> source;  ///< Number of the source; empty if no frame had it.

    /// @brief Last peer; default-constructed if the source never connected.
    asio::ip::tcp::endpoint peer;
    /// @brief Error of the source.
    ///
    /// - errc::bad_frame, errc::wrong_checksum or errc::stream_cut: the source has ended, and the stream delivers its
    ///   earlier rows. The error is errc::wrong_checksum only if the sender does not keep the frame (version 1 of the
    ///   protocol).
    /// - errc::wrong_source: rows are lost, because the sender is not one of the sources, or is a second sender with
    ///   the number.
    /// - errc::wrong_secret and other errors, for peers that are not sources: the error of the connection.
    error_code code;
    /// @brief Diagnostics of the error.
    ///
    /// describe(code, why) returns one sentence that names source and peer.
    diagnostics why;
};

/// @brief Options of a stream of tensors. Set either `listen` or `connect`.
struct tensor_stream_options {
    /// @brief Endpoints to listen on.
    ///
    /// Senders connect, and name their source in each frame.
    std::vector<asio::ip::tcp::endpoint> listen{};
    /// @brief Number of sources, including those of other ranks. Only with `listen`.
    ///
    /// Sources have numbers from 0.
    std::uint32_t sources = 1;
    /// @brief Endpoints of listening sources. Source i listens at `connect[i]`.
    std::vector<asio::ip::tcp::endpoint> connect{};

    /// @brief Rank of this process, as torchrun's `RANK`.
    ///
    /// The process receives the sources whose number modulo `world_size` is `rank`. The processes need not know each
    /// other. The stream of a process without a source ends at once.
    std::uint32_t rank = 0;
    std::uint32_t world_size = 1;  ///< Number of processes, as torchrun's `WORLD_SIZE`.

    std::size_t batch_size = 64;  ///< Rows of a batch.

    /// @brief Whether to drop a last batch with fewer rows.
    bool drop_last = false;
    /// @brief Most batches that are ready or being filled in advance.
    ///
    /// At this number of batches, frames wait. Soon the senders wait too, because TCP stops them.
    std::size_t queue_depth = 2;
    frame_order order = frame_order::as_they_come;  ///< Order of frames.

    /// @brief Time of acknowledgements.
    acknowledge_when acknowledge = acknowledge_when::received;
    /// @brief Position at which the stream begins.
    ///
    /// If the sources send the same frames, the stream delivers the batches that would have followed the position. With
    /// frame_order::as_they_come the order of arrival may change them. The stream does not request rows before the
    /// position, or drops them. The position must have all sources of this process. The stream ignores other sources in
    /// it.
    stream_position position{};

    /// @brief Number of rows to shuffle at a time. 0: the order of the frames.
    ///
    /// The stream rounds the number up to whole batches. The order depends on `seed`, on the epoch, and on the rows
    /// that arrive. With several sources it is the same in every run only with frame_order::rounds. This number of rows
    /// is in memory in addition to the queue. The stream delivers the rows once all of them have arrived. It copies
    /// each row separately.
    std::size_t shuffle = 0;
    std::uint64_t seed = 0;  ///< Seed of the order of rows.

    /// @brief Secret that authenticates senders and this stream to each other.
    ///
    /// It has at least 16 bytes and must be impossible to guess.
    ///
    /// The stream disconnects a peer that does not prove the secret. It reads nothing else of a peer before the proof.
    /// Empty: every peer may connect. The secret only authenticates peers. It does not encrypt the bytes on the
    /// network, and does not protect them against changes.
    std::string secret{};

    /// @brief CUDA ordinal of the GPU for the batches; -1: host memory.
    ///
    /// It is independent of the place of the session's memory.
    int gpu = -1;
    /// @brief CUDA stream of the program's work on batches. Empty: CUDA's default stream.
    ///
    /// It applies to batches in a GPU's memory.
    ///
    /// The library makes this stream wait only for the batches that it delivers.
    ///
    /// @par Lifetime
    /// The stream must outlive the tensor_stream and its batches.
    cuda_stream_ref stream{};

    /// @brief Most time until a source's first connection. Zero: no limit.
    ///
    /// After this time the source ends with errc::stream_cut.
    std::chrono::milliseconds start_timeout{std::chrono::minutes{5}};
    /// @brief Most time until a source reconnects. Zero: it ends at once.
    ///
    /// After this time the source ends with errc::stream_cut.
    std::chrono::milliseconds reconnect_timeout{std::chrono::seconds{30}};
    /// @brief Most time without bytes on a connection. Zero: no limit.
    ///
    /// The time counts only while the stream reads the connection. A stopped or stuck process keeps its connection
    /// alive. After this time the stream closes the connection, and the source may reconnect as after any other loss.
    /// Time in which frames wait for room in the queue does not count.
    std::chrono::milliseconds stall_timeout{std::chrono::minutes{5}};

    /// @brief Limits of frames. `frame_size` is at most 4 GiB.
    ///
    /// The stream refuses larger frames with errc::bad_frame.
    frame_limits limits{};
    /// @brief Most bytes of a batch.
    std::uint64_t max_batch_size = std::uint64_t{4} << 30;
    /// @brief Tensors that each frame must have.
    ///
    /// Empty: those of the first frame without a wrong CRC32C.
    std::vector<tensor_spec> tensors{};

    /// @brief Function that receives each source_error. Empty: errors() returns them.
    ///
    /// It must not throw.
    ///
    /// @par Executor
    /// The stream's.
    std::function<void(source_error const&)> on_error{};
};

/// @brief Counters of a stream, by value, at one moment.
struct tensor_stream_stats {
    std::uint64_t connections = 0;  ///< Connections so far.
    std::uint64_t frames = 0;       ///< Frames whose rows went into batches.

    /// @brief Frames dropped because they came again after a lost connection.
    std::uint64_t duplicates = 0;
    /// @brief Frames with a wrong CRC32C that were sent again.
    ///
    /// They came through another connection.
    std::uint64_t damaged = 0;
    std::uint64_t rows = 0;           ///< Rows that went into batches.
    std::uint64_t payload_bytes = 0;  ///< Bytes of payload.

    /// @brief Batches delivered.
    std::uint64_t batches = 0;
    /// @brief Bytes of memory that frames and batches have now.
    ///
    /// They are at most one frame for each connection, and `queue_depth` batches in addition to those of the program.
    std::uint64_t memory = 0;
    std::uint64_t memory_high_water = 0;  ///< Most bytes of memory at one time.
};

/// @brief A receiver of batches from the sources of a stream.
///
/// A stream receives from its construction until its queue is full, even if the program requests no batch.
///
/// The stream copies bytes from the session's memory to a frame's memory; each connection has memory for one frame. It
/// checks the bytes there (CRC32C, on the GPU if they are on one). It acknowledges the frame if the sender requests
/// that, and copies the rows into their batches. An incomplete or wrong frame leaves no row behind.
///
/// @par Executor
/// A coroutine on its own strand reads each connection. One more strand puts rows into batches. All of them run on
/// `executor`. With the executor of a thread pool, connections are received and checked in parallel.
///
/// @par Connections
/// `rx_session_options::max_flows` is the most connections at one time. Set it above the number of sources, so that a
/// source can reconnect. If there is no room, the stream closes the oldest connection without a first frame, so probes
/// and scanners do not block sources. At most the sources of this rank and four more peers can wait to be accepted.
/// Other peers must try again; TCP does so after a second.
///
/// @par Lifetime
/// The session must outlive the tensor_stream, or close(). Destroy the tensor_stream before its execution context, or
/// as a part of an object in that context. Batches may outlive both.
///
/// @par Thread safety
/// Threads may call all members at the same time, except move and destruction.
class tensor_stream {
  public:
    /// @brief Type of the executor.
    using executor_type = asio::any_io_executor;

    /// @brief Constructs a stream. It begins to receive.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - `EINVAL`: options contradict each other; the text names them.
    /// - The errors of listening, and of steering to the session.
    /// - gpurx::errc::no_cuda.
    tensor_stream(executor_type executor, rx_session& session, tensor_stream_options options);
    /// @brief Constructs a stream with the executor of an execution context; otherwise as above.
    /// @tparam ExecutionContext A type that converts to `asio::execution_context&`.
    template <class ExecutionContext>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> tensor_stream(
        ExecutionContext& context, rx_session& session, tensor_stream_options options)
        : tensor_stream(executor_type{context.get_executor()}, session, std::move(options))
    {}
    /// @brief Moves the stream.
    tensor_stream(tensor_stream&&) noexcept;
    /// @brief Closes the present stream, as the destructor does, and moves the other.
    tensor_stream& operator=(tensor_stream&&) noexcept;
    /// @brief Closes the stream, as close() does.
    ~tensor_stream();

    /// @brief Returns the executor.
    [[nodiscard]] executor_type get_executor() const noexcept;
    /// @brief Returns the endpoints that the stream listens on.
    ///
    /// Empty with `tensor_stream_options::connect`.
    ///
    /// If the options have port 0, the endpoints have the ports that the system chose.
    [[nodiscard]] std::vector<asio::ip::tcp::endpoint> local_endpoints() const;
    /// @brief Returns the failures of all sources, and the last 64 of other peers.
    ///
    /// Of the failures of other peers, the stream keeps errc::wrong_source the longest.
    [[nodiscard]] std::vector<source_error> errors() const;
    /// @brief Returns the counters.
    [[nodiscard]] tensor_stream_stats stats() const;

    /// @brief Acknowledges the rows before a position, with acknowledge_when::saved.
    ///
    /// Call it when the program has stored these rows elsewhere, or never needs them again. A position before that of
    /// an earlier call has no effect.
    ///
    /// @param until Position behind the rows.
    void acknowledge(stream_position const& until);

    /// @brief Closes all connections, and drops undelivered batches.
    ///
    /// A pending async_next(), and every later one, completes with `operation_aborted`. The coroutines end as soon as
    /// the executor runs.
    void close() noexcept;

    /// @brief Takes the next batch.
    ///
    /// The rules of receiver.hpp hold: the handler runs on its associated executor, never inside the initiating
    /// function. Several operations may be pending. Their order is unspecified: any of them may get the next batch.
    ///
    /// @param token Completion token with the signature `void(error_code, batch)`.
    ///
    /// @par Per-operation cancellation
    /// Terminal, partial and total. An operation that completes with `operation_aborted` has taken no batch.
    ///
    /// @par Errors
    /// - errc::epoch_ended, with an empty batch: all sources have ended the epoch, or have ended. It comes between the
    ///   last batch of an epoch and the first of the next.
    /// - `asio::error::eof`: all sources have ended, with or without an error (errors()). Every later operation
    ///   completes with it too.
    /// - Errors that stop the stream itself: `ENOMEM`, the CUDA driver's errors. Every later operation completes with
    ///   them too.
    ///
    /// @par End of the stream
    /// Connections stay open until the stream has acknowledged their last frame, and their sender has received the
    /// acknowledgement.
    ///
    /// @par Cost
    /// No copy. With a GPU, two driver calls.
    template <asio::completion_token_for<void(error_code, batch)> Token = use_awaitable_t>
    auto async_next(Token&& token = Token());

  private:
    std::shared_ptr<detail::stream_state> state_;
};

namespace detail {

// Batches between the strand that fills them and the operations that take them. Thread safety: any call at any time.
class ready_batches {
  public:
    ready_batches(asio::any_io_executor const& executor, cuda_stream_ref filled_on, cuda_stream_ref consumer);

    // Returns whether there is a batch, an end or an error to complete with.
    [[nodiscard]] bool take(error_code& code, batch& result) noexcept;
    // Resumes the operation when there may be a result. Returns false if there is one already; the operation is then
    // untouched.
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
    // Adds the end of an epoch behind the present batches.
    void put_end_of_epoch(std::shared_ptr<stream_position const> position);
    // Ends the stream after the present batches. An error overrides the end, and operation_aborted overrides
    // everything.
    void end(error_code why, std::shared_ptr<stream_position const> position = {}) noexcept;
    // Returns whether the stream ended with an error.
    [[nodiscard]] bool has_failed() const;
    void drop() noexcept;
    [[nodiscard]] std::size_t size() const;
    [[nodiscard]] std::uint64_t taken() const;
    // Returns the position behind the last batch taken; null if none was taken.
    [[nodiscard]] std::shared_ptr<stream_position const> position() const;
    // Sets the function that take() calls when there is room for a batch, or when it has returned the end or an error.
    // Call it before all other members.
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
        auto const ready = from;  // keeps the batches while *this is moved from
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
