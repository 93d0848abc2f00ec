// SPDX-License-Identifier: Apache-2.0
//
// One connection, shared by its receiver, its operations and its loans. It has a descriptor of the socket of its own,
// because closing the last one gives all pages back to the NIC while a loan may still be read; so the socket is shut
// down when the receiver closes, and closed when the last loan is gone. It knows no Asio: loans come back when and
// where no executor exists any more.
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
    // Throws system_error if there is no descriptor left for the wake-up.
    flow(std::unique_ptr<flow_place> place, unique_fd socket);
    flow(flow const&) = delete;
    flow& operator=(flow const&) = delete;
    ~flow();

    [[nodiscard]] flow_place& place() const noexcept { return *place_; }
    [[nodiscard]] int socket() const noexcept { return socket_.get(); }
    [[nodiscard]] gpurx::stats stats() const noexcept { return place_->counters.snapshot(); }

    // False in a child that was forked: the connection is the parent's, and loans that come back are just forgotten.
    [[nodiscard]] bool is_here() const noexcept { return born_.is_here(); }

    // ---- the receiving side: one thread at a time ----

    // While a step is open, loans that come back are gathered for the kernel instead of handed over one by one. Its end
    // hands over what was gathered, so no step may stay open while nothing runs: pages would be stranded.
    class step {
      public:
        explicit step(flow& of) noexcept : flow_{of} { flow_.begin_step(); }
        step(step const&) = delete;
        step& operator=(step const&) = delete;
        ~step() { flow_.end_step(); }

      private:
        flow& flow_;
    };

    // Bytes that may be lent before a loan has to return, and that a read may receive before pages have to come back
    // that wait for the streams of earlier reads: separate shares of the memory (session/budget.hpp).
    [[nodiscard]] std::size_t loan_limit() const noexcept { return loan_limit_; }
    [[nodiscard]] std::size_t loan_budget() const noexcept { return left_of(loan_limit_, place_->on_loan); }
    [[nodiscard]] std::size_t read_budget() const noexcept { return left_of(read_share_, place_->in_reads); }

    // As flow_transport::receive; null with an error. Inside a step. No share is charged yet.
    [[nodiscard]] std::unique_ptr<loan> receive(std::size_t limit, error_code& code) noexcept;
    // A loan of a copy of `bytes` (not empty), which the program had received before. Null with an error.
    [[nodiscard]] std::unique_ptr<loan> wrap(std::span<std::byte const> bytes, error_code& code) noexcept;
    // As flow_transport::receive_into.
    [[nodiscard]] bool writes_in_place() const noexcept { return writes_in_place_; }
    [[nodiscard]] std::size_t receive_into(landing const& destination, std::size_t size, error_code& code) noexcept;
    // Puts what receive() returned behind what is carried, for which there is room. Small batches become one, or a
    // sender of single bytes would have each of them take a record.
    void carry(carried_batches& carried, std::unique_ptr<loan> batch) noexcept;
    // Takes `size` bytes off the front of what is carried, to be lent: a part of a batch, or several batches. Null with
    // an error: nothing was taken. Precondition: 0 < size <= carried.bytes().
    [[nodiscard]] std::unique_ptr<loan> take(carried_batches& carried, std::size_t size, error_code& code) noexcept;
    // A carried batch counts as a loan while a part of it is lent. True: no part is any more, and it counts no more.
    bool discount(loan& batch) noexcept;

    // Whether the last receive took all that the socket had, no wait has ended since, and to ask again would be in
    // vain: as it was the last time, which is not believed for ever.
    [[nodiscard]] bool is_drained() const noexcept { return drained_ && in_vain_ > 0; }
    // At the end of a wait for the socket.
    void expect_more() noexcept
    {
        if (is_drained())
            --in_vain_;
        drained_ = false;
    }

    // A receive can lack one of these until something comes back.
    enum class lack : std::uint8_t { loan_budget, read_budget, pages };
    // wake_fd() will be readable when what is lacking may be there: of a budget, more than `taken`. False: it is there
    // now, and nothing was arranged.
    [[nodiscard]] bool notify_of(lack what, std::size_t taken = 0) noexcept;
    // The same where a stream has too much to do.
    [[nodiscard]] bool notify_of(stream_backlog& full) noexcept;
    [[nodiscard]] int wake_fd() const noexcept { return wake_.get(); }
    // Makes wake_fd() unreadable again.
    void drain_wake() noexcept;

    // Ends the connection in both directions and throws away what is queued; the descriptor stays.
    void shut_down() noexcept;

    // ---- loans: any thread ----

    [[nodiscard]] static rx_buffer lend(std::shared_ptr<flow> owner, std::unique_ptr<loan> record) noexcept;
    // A loan of the next `size` bytes of `from`, which keeps the rest. `part`: an empty record. Throws std::bad_alloc.
    [[nodiscard]] std::unique_ptr<loan> split(loan& from, std::size_t size, std::unique_ptr<loan> part);
    void acquire(loan const& record, cuda_stream_ref stream) noexcept;
    // The same where the CPU reads what lies on the host.
    void acquire_for_cpu(loan const& record) noexcept;
    // The GPU whose streams may read the bytes; no_gpu: none.
    [[nodiscard]] int reading_gpu(loan const& record) const noexcept;
    // Now, or when the work that reads the bytes has finished. What no share was charged for yet was
    // received for a read.
    void give_back(std::unique_ptr<loan> record) noexcept;
    // Takes `size` bytes off the front of what was received for a read.
    void take_front(loan& record, std::size_t size) noexcept
    {
        std::scoped_lock const lock{listed_lock_};
        drop(record, size);
    }
    // When all work enqueued on `stream` so far has finished, too.
    void give_back_after(std::unique_ptr<loan> record, cuda_stream_ref stream) noexcept;

  private:
    [[nodiscard]] static std::size_t left_of(std::size_t share, std::atomic<std::size_t> const& account) noexcept
    {
        auto const used = account.load();
        return used < share ? share - used : 0;
    }
    [[nodiscard]] std::uint64_t note_pages(page_use what, page_census& census) const noexcept override;
    // A record that holds pages is in the list from when it was received until they are the kernel's again.
    void list(loan& record) noexcept;
    void unlist(loan& record) noexcept;
    void note_end_of_receive(error_code code) noexcept;
    static void charge(loan& record, std::atomic<std::size_t>& account) noexcept;
    void give_back_now(std::unique_ptr<loan> record) noexcept;
    void give_back_batches(std::unique_ptr<loan> record) noexcept;
    // give_back() in a child that was forked. A loan stays for its parts: their bytes may be its own.
    static void forget(std::unique_ptr<loan> record) noexcept;
    // Runs when the streams that a parked loan waits for have passed.
    static void unpark(void* parked, error_code) noexcept;
    void begin_step() noexcept { in_step_.store(true); }
    void end_step() noexcept
    {
        in_step_.store(false);
        // A thread that has seen the step open has gathered by now, or will look again (give_back).
        if (transport_->gathered())
            transport_->flush();
    }
    // An operation that awaits a budget looks again.
    void wake_for_budget() noexcept;
    [[nodiscard]] std::unique_ptr<loan> take_record();
    [[nodiscard]] std::unique_ptr<loan> join(carried_batches& carried, std::size_t size);
    void keep_record(std::unique_ptr<loan> record) noexcept;

    birthplace born_;
    // The order matters at the end: transport, descriptors, the place in the session, and then perhaps the session.
    std::unique_ptr<flow_place> place_;
    std::size_t loan_limit_;
    std::size_t read_share_;
    unique_fd socket_;
    unique_fd wake_;
    process_ptr<flow_transport> transport_;
    bool writes_in_place_;
    bool drained_ = false;
    unsigned in_vain_ = 0;               // waits until the socket is asked again though it was drained
    stream_backlog* awaited_ = nullptr;  // that may still write to wake_

    // Between the receiving side and those who give loans back. Sequentially consistent: each side writes its own and
    // then reads the other's.
    std::atomic<bool> in_step_{false};
    std::atomic<bool> budget_awaited_{false};
    // Records to be used again, as lists: those that came back, and those the receiving side has taken from there.
    std::atomic<loan*> returned_{nullptr};
    loan* spare_ = nullptr;

    mutable brief_lock listed_lock_;  // guards the list, and fragments of what is in it
    loan* listed_ = nullptr;
};

}  // namespace gpurx::detail
