// SPDX-License-Identifier: Apache-2.0
//
// One connection, shared by its receiver, its operations and its loans. It has its own descriptor of the socket. The
// close of the last descriptor returns all pages to the NIC, while the program may still read a loan. So the flow shuts
// the socket down when the receiver closes, and closes it when the last loan is gone. It does not depend on Asio: loans
// may return after their executor is gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include <gpurx/error.hpp>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/stats.hpp>
#include <gpurx/views.hpp>

#include "base/fork.hpp"
#include "base/syscalls.hpp"
#include "base/thread.hpp"
#include "cuda/gpu_work.hpp"
#include "loan.hpp"
#include "session/session_state.hpp"
#include "transport.hpp"

namespace gpurx::detail {

class flow final : public std::enable_shared_from_this<flow>, private page_holder {
  public:
    // Throws system_error if no descriptor is left for the wake-up.
    flow(std::unique_ptr<flow_place> place, unique_fd socket);
    flow(flow const&) = delete;
    flow& operator=(flow const&) = delete;
    ~flow();

    [[nodiscard]] flow_place& place() const noexcept { return *place_; }
    [[nodiscard]] int socket() const noexcept { return socket_.get(); }
    [[nodiscard]] gpurx::stats stats() const noexcept { return place_->counters.snapshot(); }

    // Returns false in a forked child: the connection belongs to the parent, and the child only forgets loans that
    // return.
    [[nodiscard]] bool is_here() const noexcept { return born_.is_here(); }

    // ---- the receiving side: one thread at a time ----

    // While a step is open, the flow gathers returned loans for the kernel instead of passing each one. The end of the
    // step passes the gathered loans. So no step may stay open while nothing runs: pages would not return.
    class step {
      public:
        explicit step(flow& of) noexcept : flow_{of} { flow_.begin_step(); }
        step(step const&) = delete;
        step& operator=(step const&) = delete;
        ~step() { flow_.end_step(); }

      private:
        flow& flow_;
    };

    // Bytes that may be lent before a loan must return, and bytes that a read may receive before pages of earlier reads
    // must pass their streams. These are separate shares of the memory (session/budget.hpp).
    [[nodiscard]] std::size_t loan_limit() const noexcept { return loan_limit_; }
    [[nodiscard]] std::size_t loan_budget() const noexcept { return left_of(loan_limit_, place_->on_loan); }
    [[nodiscard]] std::size_t read_budget() const noexcept { return left_of(read_share_, place_->in_reads); }

    // As flow_transport::receive(). Returns null on an error. Call it inside a step. It charges no share yet.
    [[nodiscard]] std::unique_ptr<loan> receive(std::size_t limit, error_code& code) noexcept;
    // Returns a loan of a copy of `bytes` (not empty), which the program has received before. Null on an error.
    [[nodiscard]] std::unique_ptr<loan> wrap(std::span<std::byte const> bytes, error_code& code) noexcept;
    // As flow_transport::receive_into.
    [[nodiscard]] bool writes_in_place() const noexcept { return writes_in_place_; }
    [[nodiscard]] std::size_t receive_into(landing const& destination, std::size_t size, error_code& code) noexcept;
    // As flow_transport::expect() and finish().
    void expect(landing const& destination, std::size_t missing) noexcept { transport_->expect(destination, missing); }
    [[nodiscard]] error_code finish(std::size_t& lost) noexcept { return transport_->finish(lost); }
    // Appends a batch of receive() to the carried batches, which must have room. Small batches are joined: otherwise
    // each byte of a sender of single bytes would take a record.
    void carry(carried_batches& carried, std::unique_ptr<loan> batch) noexcept;
    // Takes `size` bytes off the front of the carried batches, to lend them: a part of a batch, or several batches. On
    // an error returns null and takes nothing. Precondition: 0 < size <= carried.bytes().
    [[nodiscard]] std::unique_ptr<loan> take(carried_batches& carried, std::size_t size, error_code& code) noexcept;
    // A carried batch counts as a loan while a part of it is lent. Returns true if no part is lent any more; the batch
    // then no longer counts.
    bool discount(loan& batch) noexcept;

    // Returns whether another receive would very likely find no bytes: the last receive took all bytes of the socket,
    // no wait has ended since, and the last such receive found none. The guess is checked again from time to time.
    [[nodiscard]] bool is_drained() const noexcept { return drained_ && in_vain_ > 0; }
    // Call it at the end of a wait for the socket.
    void expect_more() noexcept
    {
        if (is_drained())
            --in_vain_;
        drained_ = false;
    }

    // Resources that a receive can lack until some return.
    enum class lack : std::uint8_t { loan_budget, read_budget, pages };
    // Makes wake_fd() readable when the missing resource may be available: of a budget, more than `taken`. If it is
    // available now, returns false and does nothing.
    [[nodiscard]] bool notify_of(lack what, std::size_t taken = 0) noexcept;
    // The same for a stream with too much queued work.
    [[nodiscard]] bool notify_of(stream_backlog& full) noexcept;
    [[nodiscard]] int wake_fd() const noexcept { return wake_.get(); }
    // Makes wake_fd() unreadable again.
    void drain_wake() noexcept;

    // Ends the connection in both directions and discards queued bytes. The descriptor stays.
    void shut_down() noexcept;

    // ---- loans: any thread ----

    [[nodiscard]] static rx_buffer lend(std::shared_ptr<flow> owner, std::unique_ptr<loan> record) noexcept;
    // Returns a loan of the next `size` bytes of `from`, which keeps the rest. `part`: an empty record. Throws
    // std::bad_alloc.
    [[nodiscard]] std::unique_ptr<loan> split(loan& from, std::size_t size, std::unique_ptr<loan> part);
    void acquire(loan const& record, cuda_stream_ref stream) noexcept;
    // The same for reads of host bytes by the CPU.
    void acquire_for_cpu(loan const& record) noexcept;
    // The GPU whose streams may read the bytes; no_gpu: none.
    [[nodiscard]] int reading_gpu(loan const& record) const noexcept;
    // Returns the loan now, or when the work that reads the bytes has finished. A loan that is not charged to a share
    // was received for a read.
    void give_back(std::unique_ptr<loan> record) noexcept;
    // Takes `size` bytes off the front of a loan that was received for a read.
    void take_front(loan& record, std::size_t size) noexcept
    {
        std::scoped_lock const lock{listed_lock_};
        drop(record, size);
    }
    // The same, but also waits for all work enqueued on `stream` so far.
    void give_back_after(std::unique_ptr<loan> record, cuda_stream_ref stream) noexcept;

  private:
    [[nodiscard]] static std::size_t left_of(std::size_t share, std::atomic<std::size_t> const& account) noexcept
    {
        auto const used = account.load();
        return used < share ? share - used : 0;
    }
    [[nodiscard]] std::uint64_t note_pages(page_use what, page_census& census) const noexcept override;
    // A record with pages is in the list from its receive until the kernel has the pages again.
    void list(loan& record) noexcept;
    void unlist(loan& record) noexcept;
    void note_end_of_receive(error_code code) noexcept;
    static void charge(loan& record, std::atomic<std::size_t>& account) noexcept;
    void give_back_now(std::unique_ptr<loan> record) noexcept;
    void give_back_batches(std::unique_ptr<loan> record) noexcept;
    // give_back() in a forked child. A loan stays alive for its parts, whose bytes may be its own.
    static void forget(std::unique_ptr<loan> record) noexcept;
    // Runs when the streams that a parked loan waits for have passed.
    static void unpark(void* parked, error_code) noexcept;
    void begin_step() noexcept { in_step_.store(true); }
    void end_step() noexcept
    {
        in_step_.store(false);
        // A thread that has seen the step open has gathered its tokens by now, or will check again (give_back).
        if (transport_->gathered())
            transport_->flush();
    }
    // Wakes an operation that waits for a budget.
    void wake_for_budget() noexcept;
    [[nodiscard]] std::unique_ptr<loan> take_record();
    [[nodiscard]] std::unique_ptr<loan> join(carried_batches& carried, std::size_t size);
    void keep_record(std::unique_ptr<loan> record) noexcept;

    birthplace born_;
    // The order of destruction matters: transport, descriptors, the place in the session, and then perhaps the session.
    std::unique_ptr<flow_place> place_;
    std::size_t loan_limit_;
    std::size_t read_share_;
    unique_fd socket_;
    unique_fd wake_;
    process_ptr<flow_transport> transport_;
    bool writes_in_place_;
    bool drained_ = false;
    unsigned in_vain_ = 0;               // waits until the next receive on a drained socket
    stream_backlog* awaited_ = nullptr;  // backlog that may still write to wake_

    // Shared by the receiving side and by threads that return loans. Sequentially consistent: each side writes its own
    // flag and then reads the other's.
    std::atomic<bool> in_step_{false};
    std::atomic<bool> budget_awaited_{false};
    // Lists of records to reuse: those that have returned, and those that the receiving side has taken from there.
    std::atomic<loan*> returned_{nullptr};
    loan* spare_ = nullptr;

    mutable brief_lock listed_lock_;  // guards the list, and fragments of its loans
    loan* listed_ = nullptr;
};

}  // namespace gpurx::detail
