// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Streams of tensors: rows from many senders, as batches in memory of a GPU or the host.
///
/// The senders speak the protocol of docs/tensor-stream.md. They send frames, each a block of rows of one or more named
/// tensors. All frames of a stream have the same tensors. The sender chooses the number of rows of a frame. The stream
/// forms batches of `batch_size` rows, whichever frames the rows came in.
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
    /// @brief Sender of this number: a random number that it keeps. 0: no sender has sent one.
    std::uint32_t sender = 0;
    std::uint64_t frame = 0;        ///< Sequence of the first frame of which rows are not taken.
    std::uint64_t row = 0;          ///< Rows of that frame that are taken.
    std::uint64_t epoch_frame = 0;  ///< Sequence of the first frame of this epoch.
    bool epoch_ended = false;       ///< Whether its last frame of this epoch is taken.
    bool ended = false;             ///< Whether its last frame of all is taken.

    friend bool operator==(source_position const&, source_position const&) = default;
};

/// @brief A place between two batches of a stream, where another stream can begin, such as that of a restarted process.
struct stream_position {
    /// @brief Number of the epoch.
    std::uint64_t epoch = 0;
    /// @brief With tensor_stream_options::shuffle, the window of this epoch. The sources are where it begins.
    std::uint64_t window = 0;
    /// @brief With tensor_stream_options::shuffle, the batches of the window that are taken.
    std::uint64_t batches = 0;
    /// @brief Positions of the process' own sources, in the order of their numbers. Empty at the beginning.
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

/// @brief A move-only batch: rows of all tensors, whose memory returns to the stream's pool at destruction.
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
/// The bytes are there for work that is enqueued on `tensor_stream_options::stream` from now on. Order any other stream
/// after that one (order_after(), cuda_stream.hpp). The stream reuses the memory once work that was enqueued on that
/// stream before the batch was destroyed has finished.
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
    /// @brief Returns the tensor of a name, or a null pointer if the batch has none.
    [[nodiscard]] tensor const* find(std::string_view name) const noexcept;
    /// @brief Returns the tensor of a name.
    /// @throws std::out_of_range If the batch has no tensor of this name.
    [[nodiscard]] tensor const& operator[](std::string_view name) const;

    /// @brief Returns the position behind the last row of this batch.
    ///
    /// An empty batch has one too, if async_next() completed with it at the end of an epoch or of the stream. Other
    /// empty batches have the position of a stream's beginning. The position stays when the batch is released.
    [[nodiscard]] stream_position position() const;

    /// @brief Returns the memory once all work enqueued on `stream` so far has finished. The batch is empty at once.
    ///
    /// Use it if the program works on the batch on another stream than that of the options. Host memory returns
    /// immediately. A stream that is being captured cannot be waited for, so the memory is not used again.
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
    /// @brief The first complete frame comes first. A slow source delays no other.
    as_they_come,
    /// @brief The first frame of each source, in the order of their numbers, then the second of each, and so on.
    /// @details A source that has ended is left out. The same frames give the same batches in every run, and all
    /// sources wait for the slowest.
    rounds,
};

/// @brief Time at which a frame is acknowledged, so that its sender need not keep it any longer.
///
/// A sender of the protocol's version 1 gets acknowledgements if it asks for them, and always as with `received`.
enum class acknowledge_when : std::uint8_t {
    received,  ///< The bytes of the frame are in the memory of this process, and are right.
    taken,     ///< All rows of the frame are in batches that async_next() has returned.
    saved,     ///< tensor_stream::acknowledge() was called with a position behind the frame.
};

/// @brief Failure of a source, or of a peer that is no source. The other sources continue.
struct source_error {
    std::optional<std::uint32_t> source;  ///< Number of the source; empty if no frame told it.

    /// @brief Last peer; default-constructed if the source never connected.
    asio::ip::tcp::endpoint peer;
    /// @brief Error of the source.
    ///
    /// - errc::bad_frame, errc::wrong_checksum or errc::stream_cut: the source has ended, and its earlier rows are
    ///   delivered. errc::wrong_checksum occurs only if the sender does not keep the frame (version 1 of the protocol).
    /// - errc::wrong_source: rows are lost, since the sender is none of the sources, or a second one of that number.
    /// - errc::wrong_secret and other errors, for peers that are no source: the error of the connection.
    error_code code;
    /// @brief Diagnostics of the error. describe(code, why) is one sentence that names source and peer.
    diagnostics why;
};

/// @brief Options of a stream of tensors. Set either `listen` or `connect`.
struct tensor_stream_options {
    /// @brief Endpoints to listen on. Senders connect, and name their source in each frame.
    std::vector<asio::ip::tcp::endpoint> listen{};
    /// @brief Number of sources, those of other ranks included. They have numbers from 0. Only with `listen`.
    std::uint32_t sources = 1;
    /// @brief Endpoints of listening sources. Source i listens at `connect[i]`.
    std::vector<asio::ip::tcp::endpoint> connect{};

    /// @brief Rank of this process, as torchrun's `RANK`.
    ///
    /// The process receives the sources whose number modulo `world_size` is `rank`. The processes need not know of each
    /// other. A process without a source is at the end of its stream at once.
    std::uint32_t rank = 0;
    std::uint32_t world_size = 1;  ///< Number of processes, as torchrun's `WORLD_SIZE`.

    std::size_t batch_size = 64;  ///< Rows of a batch.

    /// @brief Whether a last batch with fewer rows is dropped.
    bool drop_last = false;
    /// @brief Most batches that are ready, or being filled, before the program asks for them.
    ///
    /// When there are so many batches, frames wait. Soon the senders wait too, since TCP stops them.
    std::size_t queue_depth = 2;
    frame_order order = frame_order::as_they_come;  ///< Order of frames.

    /// @brief Time of acknowledgements.
    acknowledge_when acknowledge = acknowledge_when::received;
    /// @brief Position at which the stream begins.
    ///
    /// The batches are those that would have followed, if the sources send the same frames. With
    /// frame_order::as_they_come the order in which frames come may change them. Rows before the position are not
    /// requested, or are dropped. The position must have all sources of this process; others in it are ignored.
    stream_position position{};

    /// @brief Rows within which the order of rows is shuffled, rounded up to whole batches. 0: the order of the frames.
    ///
    /// The order depends on `seed`, on the epoch, and on the rows that come. With several sources it is the same in
    /// every run only with frame_order::rounds. So many rows are in memory besides the queue. The stream delivers them
    /// once all of them are there. It copies each row by itself.
    std::size_t shuffle = 0;
    std::uint64_t seed = 0;  ///< Seed of the order of rows.

    /// @brief Secret that authenticates senders and this stream to each other: at least 16 bytes, impossible to guess.
    ///
    /// The stream disconnects a peer that does not prove the secret, and reads nothing else of it before. Empty: every
    /// peer may connect. The secret authenticates peers only. It neither encrypts the bytes on the network nor protects
    /// them against changes.
    std::string secret{};

    /// @brief CUDA ordinal of the GPU that has the batches in its memory; -1: host memory.
    ///
    /// It may differ from the place of the session's memory.
    int gpu = -1;
    /// @brief Stream on which the program works on batches in a GPU's memory. Empty: CUDA's default stream.
    ///
    /// The library makes this stream wait for nothing but the batches that it delivers.
    ///
    /// @par Lifetime
    /// The stream must outlive the tensor_stream and its batches.
    cuda_stream_ref stream{};

    /// @brief Time that a source may take for its first connection. Zero: no limit.
    ///
    /// The source then ends with errc::stream_cut.
    std::chrono::milliseconds start_timeout{std::chrono::minutes{5}};
    /// @brief Time that a source may be without a connection after it has lost one. Zero: it ends at once.
    ///
    /// The source then ends with errc::stream_cut.
    std::chrono::milliseconds reconnect_timeout{std::chrono::seconds{30}};
    /// @brief Time that a connection may bring no bytes while it is read. Zero: no limit.
    ///
    /// A stopped or stuck process keeps its connection alive. The stream then closes the connection, and the source may
    /// reconnect as after any other loss. Time in which frames wait for room in the queue does not count.
    std::chrono::milliseconds stall_timeout{std::chrono::minutes{5}};

    /// @brief Limits of frames. Larger frames are refused with errc::bad_frame. `frame_size` is 4 GiB at most.
    frame_limits limits{};
    /// @brief Most bytes of a batch.
    std::uint64_t max_batch_size = std::uint64_t{4} << 30;
    /// @brief Tensors that each frame must have.
    ///
    /// Empty: those of the first frame that is right. A frame with a wrong CRC32C is not.
    std::vector<tensor_spec> tensors{};

    /// @brief Function that is called with each source_error. Empty: errors() returns them.
    ///
    /// It must not throw.
    ///
    /// @par Executor
    /// That of the stream.
    std::function<void(source_error const&)> on_error{};
};

/// @brief Counters of a stream, by value, at one moment.
struct tensor_stream_stats {
    std::uint64_t connections = 0;  ///< Connections that the stream had.
    std::uint64_t frames = 0;       ///< Frames whose rows went into batches.

    /// @brief Frames dropped since they came again after a lost connection.
    std::uint64_t duplicates = 0;
    /// @brief Frames with a wrong CRC32C that were sent again through another connection.
    std::uint64_t damaged = 0;
    std::uint64_t rows = 0;           ///< Rows that went into batches.
    std::uint64_t payload_bytes = 0;  ///< Bytes of payload.

    /// @brief Batches delivered.
    std::uint64_t batches = 0;
    /// @brief Bytes of memory that frames and batches have now.
    ///
    /// They are at most one frame for each connection, and `queue_depth` batches besides those of the program.
    std::uint64_t memory = 0;
    std::uint64_t memory_high_water = 0;  ///< Most bytes of memory at one time.
};

/// @brief A receiver of batches from the sources of a stream.
///
/// A stream receives from its construction on until its queue is full, even without a call for a batch.
///
/// Bytes go from the session's memory to memory for one frame of their connection. The stream checks them there
/// (CRC32C, on the GPU if they are on one). It acknowledges the frame if the sender asks for it, and copies the rows
/// into their batches. A cut or wrong frame leaves no row behind.
///
/// @par Executor
/// A coroutine on a strand of its own reads each connection. One more strand puts rows into batches. All of them run on
/// `executor`. With the executor of a thread pool, connections are received and checked in parallel.
///
/// @par Connections
/// `rx_session_options::max_flows` is the most connections at one time. Set it above the number of sources, so that a
/// source can reconnect. If there is no place, the oldest connection without a first frame is closed, so probes and
/// scanners keep out no source. At most the sources of this rank and four more peers wait to be accepted. Other peers
/// must try again; TCP does so after a second.
///
/// @par Lifetime
/// The session must outlive the tensor_stream, or close(). Destroy the tensor_stream before its execution context, or
/// as a part of an object in it. Batches may outlive both.
///
/// @par Thread safety
/// Threads may call all members at the same time, except move and destruction.
class tensor_stream {
  public:
    /// @brief Type of the executor.
    using executor_type = asio::any_io_executor;

    /// @brief Constructs a stream, which begins to receive.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - `EINVAL`: options contradict each other, and the text tells which.
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
    /// @brief Returns the endpoints that the stream listens on; empty with `tensor_stream_options::connect`.
    ///
    /// They have the ports that the system chose if the options left the choice to it.
    [[nodiscard]] std::vector<asio::ip::tcp::endpoint> local_endpoints() const;
    /// @brief Returns the failures so far: of all sources, and the last 64 of other peers.
    ///
    /// Of other peers the stream keeps errc::wrong_source the longest.
    [[nodiscard]] std::vector<source_error> errors() const;
    /// @brief Returns the counters.
    [[nodiscard]] tensor_stream_stats stats() const;

    /// @brief Acknowledges the rows before a position, with acknowledge_when::saved.
    ///
    /// Call it once these rows are stored elsewhere, or need never be received again. A position before that of an
    /// earlier call does nothing.
    ///
    /// @param until Position behind the rows.
    void acknowledge(stream_position const& until);

    /// @brief Closes all connections, and drops batches that are not delivered.
    ///
    /// A pending async_next(), and every later one, completes with `operation_aborted`. The coroutines end as soon as
    /// the executor runs.
    void close() noexcept;

    /// @brief Takes the next batch.
    ///
    /// The rules of receiver.hpp hold: the handler runs on its associated executor, never inside the initiating
    /// function. Several operations may be pending. Which of them gets the next batch is unspecified.
    ///
    /// @param token Completion token with the signature `void(error_code, batch)`.
    ///
    /// @par Per-operation cancellation
    /// Terminal, partial and total. After `operation_aborted` no batch was taken.
    ///
    /// @par Errors
    /// - errc::epoch_ended, with an empty batch: all sources have ended the epoch, or have ended. The operation has it
    ///   between the last batch of an epoch and the first of the next.
    /// - `asio::error::eof`: all sources have ended, with or without an error (errors()). Every later operation has it
    ///   too.
    /// - Errors that stop the stream itself: `ENOMEM`, the CUDA driver's errors. Every later operation has them too.
    ///
    /// @par End of the stream
    /// Connections stay until the stream has acknowledged their last frame, and their sender has seen that.
    ///
    /// @par Cost
    /// No copy. With a GPU two calls of the driver.
    template <asio::completion_token_for<void(error_code, batch)> Token = use_awaitable_t>
    auto async_next(Token&& token = Token());

  private:
    std::shared_ptr<detail::stream_state> state_;
};

namespace detail {

// Batches between the strand that fills them and their takers. Thread safety: any call at any time.
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
