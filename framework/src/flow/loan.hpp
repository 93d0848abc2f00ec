// SPDX-License-Identifier: Apache-2.0
//
// Loans of rx_buffers, batches that a flow carries, and tokens gathered for their return to the kernel. No I/O.
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

// A list that keeps its capacity when it is emptied. A loop may write elements at end() and behind it, within the
// capacity, and set the new end once. push_back() checks the capacity and stores the end for each element.
template <class T>
class reused_list {
  public:
    // Makes the capacity at least `count`. May move the elements, as push_back() may.
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
    // Adds the elements that were written up to the given end.
    void extend_to(T const* end) noexcept { size_ = static_cast<std::size_t>(end - begin()); }
    void clear() noexcept { size_ = 0; }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    // Returns how many more elements fit without a move.
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

    // Absorbs `next` if it is adjacent to this range, at either end: a page pool allocates its pages in either
    // direction. The order in which the tokens of a range were received does not matter.
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

// Host bytes that fragments point into (linear payload, a missed rule). Loans share them as long as there is room.
struct host_chunk {
    host_bytes bytes;
    std::size_t size = 0;
    bool in_reach = false;                  // of the memory's GPU
    std::size_t used = 0;                   // bytes used; belongs to the receiving side
    std::atomic<std::uint32_t> holders{1};  // loans, and the receiving side
    host_chunk* next = nullptr;             // in a list of chunks to reuse
};

// Another session of this process whose memory has fragments of a re-steered flow.
struct foreign_hold {
    std::shared_ptr<session_state> session;
    std::uint32_t dmabuf_id = 0;
    std::uint64_t tokens = 0;  // pages of it
};

// A flow reuses its records, so that lists keep their capacity.
struct loan {
    reused_list<fragment> fragments;  // stream order
    std::size_t consumed = 0;         // fragments before this one were taken by async_read, unchanged
    std::size_t front_taken = 0;      // bytes taken of the next fragment
    std::size_t bytes = 0;            // not yet consumed
    // Bytes charged to a share of the memory until the whole loan returns: whole pages, each once, and host bytes.
    std::size_t charge = 0;
    std::atomic<std::size_t>* account = nullptr;  // the charged account; null: none yet
    reused_list<token_range> tokens;              // transport devmem
    std::uint64_t token_count = 0;                // in all ranges of `tokens`
    std::uint64_t own_tokens = 0;                 // tokens of the flow's own session
    // transport copy: pages of the session's pool, one reference each; zcrx: the page of each piece.
    reused_list<std::uint32_t> pages;
    std::uint32_t queue = 0;             // transport zcrx: of the session, the one that has these pages
    host_chunk* host = nullptr;          // chunk that this loan holds; may be null
    std::vector<foreign_hold> foreign;   // usually empty
    stream_point* read_until = nullptr;  // work that reads the bytes; the pages wait for it
    spare_point spare;                   // for more such work, when the loan returns
    // A part of another loan (split_front) has no pages of its own. The other loan has them, and keeps them for its
    // parts.
    loan* of = nullptr;
    std::atomic<std::uint32_t> holders{1};     // the loan itself, and its parts
    std::vector<std::unique_ptr<loan>> parts;  // batches of a loan of several batches; they have the pages
    std::shared_ptr<flow> keeper;              // set while the loan waits for streams
    bool is_reused = true;                     // the flow reuses the record
    loan* next = nullptr;                      // in a list of records to reuse
    // Links of the list of loans that hold pages (flow::note_pages).
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
    // All bytes ever appended, including those taken since.
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
    // Appends a piece of the stream. If it follows the last piece in memory, it becomes part of it.
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
    // Appends a token. A neighbour of the last range becomes part of it. Array tokens come in any order; sorting them
    // would cost more than the shorter list saves.
    void append_token(std::uint32_t token)
    {
        if (tokens.empty() || !tokens.end()[-1].join({token, 1}))
            tokens.push_back({token, 1});
    }
    // Empties the record and keeps its capacity. Precondition: its pages have returned.
    void clear() noexcept;
};

// Takes `size` bytes off the front. Precondition: size <= from.bytes.
void drop(loan& from, std::size_t size) noexcept;
// Returns the number of fragments of the next `size` bytes.
[[nodiscard]] std::size_t pieces_of(loan const& from, std::size_t size) noexcept;
// Takes `size` bytes off the front; `part`, an empty record with room for their fragments, becomes a loan of them.
void split_front(loan& from, std::size_t size, loan& part) noexcept;
// Returns whether `batch` can become part of `into` without an allocation. `batch` follows `into` in the stream, and no
// operation has taken bytes of it. Both must be carried for the same use and not lent, and the batch must fit.
[[nodiscard]] bool can_absorb(loan const& into, loan const& batch) noexcept;
// Moves the contents of `batch` to the end of `into`, and leaves a record to clear. Precondition: can_absorb().
void absorb(loan& into, loan& batch) noexcept;
// Visits the loans that have the pages of `of`: itself, the loan that it is a part of, or its parts.
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
// Copies at most `size` next bytes to `destination`; returns their number. Precondition: the fragments are in host
// memory.
std::size_t copy_front(loan const& from, std::byte* destination, std::size_t size) noexcept;
// Returns whether the CPU can read the next `size` bytes.
[[nodiscard]] bool is_on_host(loan const& from, std::size_t size) noexcept;

// Received batches that no operation has taken yet, in stream order. None is empty. Only a receive of an exact size
// carries more than one.
class carried_batches {
  public:
    [[nodiscard]] bool empty() const noexcept { return front_ == nullptr; }
    [[nodiscard]] std::size_t bytes() const noexcept { return empty() ? 0 : front_->bytes + bytes_behind_; }
    // Precondition: not empty. The caller that takes its last byte must give the batch back.
    [[nodiscard]] loan& front() const noexcept { return *front_; }
    [[nodiscard]] loan& back() const noexcept { return behind_.empty() ? *front_ : *behind_.back(); }
    [[nodiscard]] std::size_t count() const noexcept { return empty() ? 0 : 1 + behind_.size(); }

    // Returns the number of fragments of the next `size` bytes.
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

    // Charge of the batches that were received for a loan.
    [[nodiscard]] std::size_t gathered() const noexcept { return empty() ? 0 : gathered(*front_) + gathered_behind_; }

    // Makes room for one more batch. Throws std::bad_alloc.
    void make_room()
    {
        if (behind_.size() == behind_.capacity())
            behind_.reserve(2 * behind_.size() + 1);
    }
    // Precondition: empty, or make_room() was called.
    void push(std::unique_ptr<loan> batch) noexcept
    {
        if (empty()) {
            front_ = std::move(batch);
        } else {
            note_behind(*batch);
            behind_.push_back(std::move(batch));
        }
    }
    // The same, if the last batch absorbs it (detail::absorb).
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
    std::size_t gathered_behind_ = 0;  // only the first batch changes its charge
};

// The argument of one setsockopt(SO_DEVMEM_DONTNEED).
struct token_batch {
    std::array<uapi::dmabuf_token, uapi::max_dontneed_entries> tokens;  // not initialized: only `entries` mean anything
    std::size_t entries = 0;
    std::size_t pages = 0;

    [[nodiscard]] std::span<uapi::dmabuf_token const> used() const noexcept { return {tokens.data(), entries}; }
};

// Tokens gathered for their return, in one batch. The size is fixed, because returning pages must not allocate. The
// owner's mutex guards it.
class release_batch {
  public:
    // Takes as much of the front of `range` as fits into the batch, and joins it to the last entry if possible. Returns
    // the rest; its count is 0 if all tokens fit.
    [[nodiscard]] token_range add(token_range range) noexcept;

    [[nodiscard]] bool empty() const noexcept { return batch_.entries == 0; }
    // Copies the batch out and begins a new one.
    void take(token_batch& into) noexcept;

  private:
    bool join_last(token_range range) noexcept;

    token_batch batch_;
};

}  // namespace gpurx::detail
