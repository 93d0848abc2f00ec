// SPDX-License-Identifier: Apache-2.0
//
// The shared state of the connections of a tensor_stream: sources and their progress, the order of frames, and the
// batch that is being filled.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gpurx/ingest/tensor_stream.hpp>
#include <gpurx/session.hpp>

#include "batch_layout.hpp"
#include "connection.hpp"
#include "epoch.hpp"
#include "frame.hpp"
#include "hello.hpp"
#include "tensor_memory.hpp"

namespace gpurx::ingest::detail {

// Throws errc::bad_frame.
[[noreturn]] void refuse_frame(std::string why);

// Use private members, and all members not marked otherwise, on strand() only.
class stream_state : public std::enable_shared_from_this<stream_state> {
  public:
    using ticket = turns::ticket;

    // Throws the errors of tensor_stream's constructor.
    stream_state(asio::any_io_executor executor, rx_session& session, tensor_stream_options options);
    // Listens and begins. Call it once.
    void start();

    // ---- from any thread ----

    void close() noexcept;
    [[nodiscard]] asio::any_io_executor const& executor() const noexcept { return executor_; }
    [[nodiscard]] asio::any_io_executor const& strand() const noexcept { return strand_; }
    [[nodiscard]] std::shared_ptr<place> const& where() const noexcept { return place_; }
    [[nodiscard]] frame_limits const& limits() const noexcept { return options_.limits; }
    [[nodiscard]] std::chrono::milliseconds stall_timeout() const noexcept { return options_.stall_timeout; }
    [[nodiscard]] std::string const& secret() const noexcept { return options_.secret; }
    void acknowledge(stream_position until);
    [[nodiscard]] ready_batches& ready() noexcept { return ready_; }
    [[nodiscard]] std::vector<asio::ip::tcp::endpoint> const& local_endpoints() const noexcept { return endpoints_; }
    [[nodiscard]] std::vector<source_error> errors() const;
    [[nodiscard]] tensor_stream_stats stats() const;

    // ---- how a connection begins, if it says hello ----

    struct meeting {
        welcome answer;
        ending refusal;
        bool has_ended;  // the source has ended: no more frames
    };
    // The sender has sent its number and its proof.
    asio::awaitable<meeting> meet(std::shared_ptr<connection> who, hello const& said);

    // ---- the steps of a frame, in this order ----

    // The head has arrived. Returns whether the frame is new; the caller must also read a duplicate. Throws if the
    // frame cannot be used.
    asio::awaitable<bool> admit(std::shared_ptr<connection> from, frame_head const& head);
    // All of the frame has arrived, and is right. Throws if the source has another connection by now.
    asio::awaitable<ticket> accept(std::shared_ptr<connection> from, frame_head const& head);
    // Waits for its turn, and for memory; then copies the connection's payload into batches.
    asio::awaitable<void> put_rows(std::shared_ptr<connection> from, frame_head const& head, ticket number);
    // The connection has ended.
    asio::awaitable<void> leave(std::shared_ptr<connection> who, ending how);

  private:
    struct source {
        source(asio::any_io_executor const& strand, std::uint32_t id) : number{id}, absence{strand}, retry{strand}
        {
            placed.source = id;
        }

        std::uint32_t number;
        source_progress progress{};
        std::shared_ptr<connection> now{};  // the source's present connection
        asio::ip::tcp::endpoint last_peer{};
        std::string last_trouble{};  // reason of the end of its last connection
        source_position placed{};    // position of the rows in batches
        std::uint64_t acknowledged = 0;
        bool has_bare_end = false;  // its last frame has arrived without rows
        bool epoch_over = false;    // it has sent all of this epoch
        bool ended = false;
        bool failed = false;
        bool confirmed = false;      // and its sender knows
        asio::steady_timer absence;  // runs while there is no connection
        asio::steady_timer retry;    // between two attempts to connect
    };

    void check_options() const;
    void find_sources();
    void go_on_at(stream_position const& where);
    [[nodiscard]] std::size_t first_turn() const;
    void listen_at(asio::ip::tcp::endpoint const& here);
    void begin();

    asio::awaitable<void> accept_from(asio::ip::tcp::acceptor& acceptor);
    asio::awaitable<void> adopt(asio::ip::tcp::socket accepted);
    [[nodiscard]] std::shared_ptr<connection> try_to_adopt(asio::ip::tcp::socket& accepted,
                                                           asio::ip::tcp::endpoint const& peer, ending& refusal);
    [[nodiscard]] std::shared_ptr<connection> longest_unknown() const;
    asio::awaitable<void> make_place(std::shared_ptr<connection> who);
    void note_stranger(asio::ip::tcp::endpoint const& peer, std::string const& why);
    [[nodiscard]] std::string who_else_came() const;
    asio::awaitable<void> connect_to(std::size_t index, asio::ip::tcp::endpoint there);
    asio::awaitable<error_code> connect_once(std::size_t index, asio::ip::tcp::endpoint there);
    // Returns null if the stream is closed. Throws the errors of receiver's constructors.
    template <class... Socket>
    [[nodiscard]] std::shared_ptr<connection> make_connection(Socket... accepted);

    [[nodiscard]] std::size_t index_of(std::uint32_t number) const;
    [[nodiscard]] greeting judge(connection const& who, hello const& said) const;
    void introduce(std::shared_ptr<connection> const& who, frame_head const& head);
    void introduce(std::shared_ptr<connection> const& who, hello const& said);
    void let_speak(std::shared_ptr<connection> const& who, source& its);
    [[noreturn]] void refuse_second(source const& its) const;
    void check_tensors(frame_head const& head) const;
    void learn_tensors(frame_head const& head);

    asio::awaitable<void> change();
    void changed();
    void room_made();
    asio::awaitable<void> put_rows_now(connection& from, frame_head const& head);
    using shared_position = std::shared_ptr<stream_position const>;
    [[nodiscard]] shared_position position() const;
    void acknowledge_until(stream_position const& until);
    void acknowledge_frames(source& its, std::uint64_t count);
    asio::awaitable<std::unique_ptr<block>> empty_block();
    asio::awaitable<void> until_read(block const& memory);
    asio::awaitable<std::size_t> put_some(connection& from, std::size_t frame_rows, std::size_t from_row);
    void fill(connection& from, block& to, std::size_t to_row, std::size_t frame_rows, std::size_t from_row,
              std::size_t count);
    void hand_out(std::unique_ptr<block> filled, std::size_t rows, shared_position behind);
    asio::awaitable<void> begin_window();
    void end_window();
    void close_ranks(std::size_t rows);

    void give_source_time(std::size_t index, std::chrono::milliseconds limit);
    void give_up(std::size_t index);
    void end_source(std::size_t index, error_code code, diagnostics why);
    void end_if_complete();
    void hand_out_rest();
    void begin_epoch();
    void confirm(std::size_t index);
    void fail(error_code code, diagnostics why);
    void stop();
    void close_soon(std::shared_ptr<connection> const& which);
    void report(source_error const& error);

    asio::any_io_executor executor_;
    asio::any_io_executor strand_;
    tensor_stream_options options_;
    std::shared_ptr<place> place_;
    std::shared_ptr<batch_pool> pool_;
    ready_batches ready_;
    std::vector<asio::ip::tcp::endpoint> endpoints_;

    std::mutex session_mutex_;
    rx_session* session_;  // null after close(): the session may be destroyed then

    std::list<asio::ip::tcp::acceptor> acceptors_;
    std::set<std::shared_ptr<connection>> connections_;
    std::uint64_t accepted_ = 0;
    std::uint64_t strangers_ = 0;  // number of peers that were not sources
    std::string last_stranger_;    // reason of the last one
    std::deque<source> sources_;   // those of this rank
    std::optional<turns> turns_;
    asio::steady_timer changed_;  // never expires; cancelled to wake waiting connections
    bool all_ended_ = false;
    bool stopped_ = false;

    std::optional<batch_layout> layout_;
    std::unique_ptr<block> filling_;
    std::size_t filled_ = 0;  // rows of it, or of the window
    std::uint64_t epoch_ = 0;
    std::vector<std::unique_ptr<block>> window_;  // of rows that are shuffled
    std::vector<std::size_t> order_;              // row i goes to place order_[i]
    shared_position window_begin_;
    std::uint64_t windows_ = 0;        // of this epoch, before this one
    std::uint64_t batches_taken_ = 0;  // of the first window, before this stream began
    std::vector<row_copy> copies_;

    mutable std::mutex told_mutex_;  // guards the members below
    std::deque<source_error> errors_of_sources_;
    std::deque<source_error> errors_of_others_;
    tensor_stream_stats stats_;
};

}  // namespace gpurx::ingest::detail
