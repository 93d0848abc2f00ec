// SPDX-License-Identifier: Apache-2.0
//
// The loan that an rx_buffer holds, batches that a flow carries, and tokens that are gathered on their way back to the
// kernel. No I/O.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <gpurx/rx_buffer.hpp>

#include "cuda/gpu_work.hpp"
#include "devmem_uapi.hpp"
#include "memory/memory_state.hpp"
#include "session/pool_state.hpp"

namespace gpurx::detail {

class flow;
class session_state;

// A list that is filled and emptied over and over, and keeps its room. A loop may write its elements at end() and
// behind it, where there is room, and say at last how far it got: push_back() looks for room, and stores where the list
// ends, with each of them.
template <class T>
class reused_list {
  public:
    // Room for `count` elements in all. Moves them, as push_back() may.
    void reserve(std::size_t count)
    {
        if (room_ < count)
            grow(count);
    }
    void push_back(T const& element)
    {
        if (size_ == room_)
            grow(2 * room_ + 1);
        slots_[size_++] = element;
    }
    // Elements that were written up to there belong to the list now.
    void extend_to(T const* end) noexcept { size_ = static_cast<std::size_t>(end - begin()); }
    void clear() noexcept { size_ = 0; }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    // So many more can be appended before it moves.
    [[nodiscard]] std::size_t spare_room() const noexcept { return room_ - size_; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] T* begin() noexcept { return slots_.get(); }
    [[nodiscard]] T const* begin() const noexcept { return slots_.get(); }
    [[nodiscard]] T* end() noexcept { return begin() + size_; }
    [[nodiscard]] T const* end() const noexcept { return begin() + size_; }

  private:
    void grow(std::size_t room)
    {
        auto larger = std::make_unique_for_overwrite<T[]>(room);
        std::copy(begin(), end(), larger.get());
        slots_ = std::move(larger);
        room_ = room;
    }

    std::unique_ptr<T[]> slots_;
    std::size_t room_ = 0;
    std::size_t size_ = 0;
};

// Tokens first, first + 1, … first + count - 1 of one socket.
struct token_range {
    std::uint32_t first = 0;
    std::uint32_t count = 0;

    // Takes `next` in if it goes on where this ends, or ends where this begins: a page pool hands its pages out in
    // either direction. In what order the tokens of a range were received does not matter.
    [[nodiscard]] constexpr bool join(token_range const& next) noexcept
    {
        if (next.first == first + count) {
            count += next.count;
            return true;
        }
        if (next.first + next.count == first) {
            first = next.first;
            count += next.count;
            return true;
        }
        return false;
    }

    friend bool operator==(token_range const&, token_range const&) = default;
};

// Bytes on the host that fragments point into (linear payload, a missed rule), of as many loans as find room there.
struct host_chunk {
    host_bytes bytes;
    std::size_t size = 0;
    bool in_reach = false;                  // of the memory's GPU
    std::size_t used = 0;                   // the receiving side's
    std::atomic<std::uint32_t> holders{1};  // loans, and the receiving side
    host_chunk* next = nullptr;             // of a list of chunks that wait to be used again
};

// Another session of this process, in whose memory fragments of a re-steered flow lie.
struct foreign_hold {
    std::shared_ptr<session_state> session;
    std::uint32_t dmabuf_id = 0;
    std::uint64_t tokens = 0;  // pages of it
};

// Records are recycled by their flow, so that lists keep their room.
struct loan {
    reused_list<fragment> fragments;  // stream order
    std::size_t consumed = 0;         // fragments before this one were taken by async_read, and are what they were
    std::size_t front_taken = 0;      // bytes that were taken of the one after them
    std::size_t bytes = 0;            // not yet consumed
    // Bytes that it takes of a share of the memory until all of it goes back: whole pages, each once, and those on the
    // host.
    std::size_t charge = 0;
    std::atomic<std::size_t>* account = nullptr;  // that was charged; null: none yet
    reused_list<token_range> tokens;              // transport devmem
    std::uint64_t token_count = 0;                // in all ranges of `tokens`
    std::uint64_t own_tokens = 0;                 // those that are pages of the flow's own session
    std::vector<std::uint32_t> pages;             // transport copy: pages of the session's pool, one reference each
    host_chunk* host = nullptr;                   // it is a holder of; may be null
    std::vector<foreign_hold> foreign;            // usually empty
    stream_point* read_until = nullptr;           // work that reads the bytes, and that the pages must wait for
    spare_point spare;                            // for more of it, when it is given back
    // A part of another loan (split_front) has no pages of its own: that one has them, and keeps them for its parts.
    loan* of = nullptr;
    std::atomic<std::uint32_t> holders{1};     // the loan itself, and its parts
    std::vector<std::unique_ptr<loan>> parts;  // of a loan of several batches: these, which have the pages
    std::shared_ptr<flow> keeper;              // while it waits for streams
    bool is_reused = true;                     // the record, by its flow
    loan* next = nullptr;                      // of a list of records that wait to be used again
    // Of the list of those that hold pages (flow::note_pages).
    std::atomic<page_use> use{page_use::in_reads};
    bool listed = false;
    loan* listed_before = nullptr;
    loan* listed_after = nullptr;

    // Bytes that the program had read itself before the flow was adopted; usually null.
    std::unique_ptr<std::byte[]> wrapped;

    [[nodiscard]] std::span<fragment const> remaining() const noexcept
    {
        return std::span{fragments}.subspan(consumed);
    }
    // All that was ever appended, what was taken since included.
    template <class Visit>
    void for_each_original(Visit&& visit) const
    {
        for (std::size_t i = 0; i < fragments.size(); ++i) {
            auto piece = fragments.begin()[i];
            if (i == consumed) {
                piece.address -= front_taken;
                piece.size += front_taken;
            }
            visit(piece);
        }
    }
    // Appends a piece of the stream; one that goes on in memory where the last one ends becomes part of it.
    void append(fragment const& piece)
    {
        bytes += piece.size;
        if (!fragments.empty()) {
            auto& last = fragments.end()[-1];
            if (last.address + last.size == piece.address && last.kind == piece.kind) {
                last.size += piece.size;
                return;
            }
        }
        fragments.push_back(piece);
    }
    // Appends a token; a neighbour of the last range becomes part of it. Array tokens come in any order, but to sort
    // them would cost more than the shorter list saves.
    void append_token(std::uint32_t token)
    {
        if (tokens.empty() || !tokens.end()[-1].join({token, 1}))
            tokens.push_back({token, 1});
    }
    // Empties the record and keeps its capacity. Precondition: what it held has been given back.
    void clear() noexcept;
};

// Takes `size` bytes off the front. Precondition: so many are there.
void drop(loan& from, std::size_t size) noexcept;
// How many fragments the next `size` bytes lie in.
[[nodiscard]] std::size_t pieces_of(loan const& from, std::size_t size) noexcept;
// Takes `size` bytes off the front; `part`, an empty record with room for their fragments, becomes a loan of them.
void split_front(loan& from, std::size_t size, loan& part) noexcept;
// Whether `batch`, of which no operation has taken anything, can become part of `into`, which it follows in the stream,
// without an allocation: both are carried for the same use and not lent, and what has no room is no small batch.
[[nodiscard]] bool can_absorb(loan const& into, loan const& batch) noexcept;
// Moves all that `batch` holds to the end of `into`, and leaves a record to be cleared. Precondition: can_absorb().
void absorb(loan& into, loan& batch) noexcept;
// The loans that have the pages of `of`: itself, that which it is a part of, or its parts.
template <class Loan, class Visit>
void for_each_batch(Loan& of, Visit&& visit)
{
    if (of.of == nullptr && of.parts.empty())
        return visit(of);
    if (of.of != nullptr)
        return for_each_batch(static_cast<Loan&>(*of.of), visit);
    for (auto const& part : of.parts)
        for_each_batch(static_cast<Loan&>(*part), visit);
}
// Copies the next bytes, at most `size`, to `destination`; returns how many. Precondition: the fragments lie in host
// memory.
std::size_t copy_front(loan const& from, std::byte* destination, std::size_t size) noexcept;
// Whether the CPU can read the next `size` bytes.
[[nodiscard]] bool is_on_host(loan const& from, std::size_t size) noexcept;

// Batches that were received and that no operation has taken yet, in stream order, none of them empty. Only a receive
// of an exact size carries more than one.
class carried_batches {
  public:
    [[nodiscard]] bool empty() const noexcept { return front_ == nullptr; }
    [[nodiscard]] std::size_t bytes() const noexcept { return empty() ? 0 : front_->bytes + bytes_behind_; }
    // Precondition: not empty. Whoever takes bytes off it gives it back when it has none left.
    [[nodiscard]] loan& front() const noexcept { return *front_; }
    [[nodiscard]] loan& back() const noexcept { return behind_.empty() ? *front_ : *behind_.back(); }
    [[nodiscard]] std::size_t count() const noexcept { return empty() ? 0 : 1 + behind_.size(); }

    // How many fragments the next `size` bytes lie in.
    [[nodiscard]] std::size_t pieces_of(std::size_t size) const noexcept
    {
        auto const in_front = std::min(size, front_->bytes);
        auto pieces = detail::pieces_of(*front_, in_front);
        size -= in_front;
        for (auto const& batch : behind_) {
            auto const here = std::min(size, batch->bytes);
            pieces += detail::pieces_of(*batch, here);
            size -= here;
        }
        return pieces;
    }

    // Bytes that those that were received for a loan will count as.
    [[nodiscard]] std::size_t gathered() const noexcept { return empty() ? 0 : gathered(*front_) + gathered_behind_; }

    // Room for one more. Throws std::bad_alloc.
    void make_room()
    {
        if (behind_.size() == behind_.capacity())
            behind_.reserve(2 * behind_.size() + 1);
    }
    // Precondition: make_room() was called, if this is not empty.
    void push(std::unique_ptr<loan> batch) noexcept
    {
        if (empty()) {
            front_ = std::move(batch);
        } else {
            note_behind(*batch);
            behind_.push_back(std::move(batch));
        }
    }
    // The same where the last one takes it in (detail::absorb).
    void absorb(loan& batch) noexcept
    {
        if (!behind_.empty())
            note_behind(batch);
        detail::absorb(back(), batch);
    }
    // Precondition: not empty.
    [[nodiscard]] std::unique_ptr<loan> pop() noexcept
    {
        auto first = std::move(front_);
        if (!behind_.empty()) {
            front_ = std::move(behind_.front());
            behind_.erase(behind_.begin());
            bytes_behind_ -= front_->bytes;
            gathered_behind_ -= gathered(*front_);
        }
        return first;
    }

  private:
    [[nodiscard]] static std::size_t gathered(loan const& batch) noexcept
    {
        return batch.account == nullptr && batch.use.load(std::memory_order_relaxed) == page_use::on_loan ? batch.charge
                                                                                                          : 0;
    }

    void note_behind(loan const& batch) noexcept
    {
        bytes_behind_ += batch.bytes;
        gathered_behind_ += gathered(batch);
    }

    std::unique_ptr<loan> front_;
    std::vector<std::unique_ptr<loan>> behind_;
    std::size_t bytes_behind_ = 0;
    std::size_t gathered_behind_ = 0;  // only the first one changes what it counts as
};

// The argument of one setsockopt(SO_DEVMEM_DONTNEED).
struct token_batch {
    std::array<uapi::dmabuf_token, uapi::max_dontneed_entries> tokens;  // not initialized: only `entries` mean anything
    std::size_t entries = 0;
    std::size_t pages = 0;

    [[nodiscard]] std::span<uapi::dmabuf_token const> used() const noexcept { return {tokens.data(), entries}; }
};

// Tokens on their way back, gathered into one batch. Of fixed size, for giving back must not allocate; guarded
// by its owner's mutex.
class release_batch {
  public:
    // Takes as much of `range` from its front as fits into the batch, joining it to the last entry where it can.
    // Returns what did not fit; its count is 0 if all did.
    [[nodiscard]] token_range add(token_range range) noexcept;

    [[nodiscard]] bool empty() const noexcept { return batch_.entries == 0; }
    // Copies the batch out and begins a new one.
    void take(token_batch& into) noexcept;

  private:
    bool join_last(token_range range) noexcept;

    token_batch batch_;
};

}  // namespace gpurx::detail
