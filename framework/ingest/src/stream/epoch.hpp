// SPDX-License-Identifier: Apache-2.0
//
// The order of rows: a source's progress, the turns of frames, and the shuffle of a window's rows. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace gpurx::ingest::detail {

class source_progress {
  public:
    enum class verdict {
        next,       // the expected frame
        duplicate,  // taken before: sent again after a connection ended
        gap,        // frames before it are missing
        after_end,  // the source has sent its last frame
    };

    source_progress() noexcept = default;
    // Continues from another process' position: expects frame `next`, or none.
    source_progress(std::uint64_t next, bool last_taken) noexcept : next_{next}, last_taken_{last_taken} {}

    [[nodiscard]] verdict judge(std::uint64_t sequence) const noexcept
    {
        if (sequence < next_)
            return verdict::duplicate;
        if (last_taken_)
            return verdict::after_end;
        return sequence == next_ ? verdict::next : verdict::gap;
    }

    // Precondition: judge() says next.
    void take(bool is_last) noexcept
    {
        ++next_;
        last_taken_ = is_last;
    }

    [[nodiscard]] std::uint64_t expected() const noexcept { return next_; }
    [[nodiscard]] bool last_taken() const noexcept { return last_taken_; }

  private:
    std::uint64_t next_ = 0;
    bool last_taken_ = false;
};

// The order of complete frames. A frame takes a ticket, and is placed at that ticket's turn.
class turns {
  public:
    using ticket = std::uint64_t;

    // In rounds, each source that has not ended places one frame, in the order of the sources' numbers; a missing frame
    // delays the others. Otherwise frames are placed in the order of their tickets.
    turns(std::size_t sources, bool in_rounds)
        : in_rounds_{in_rounds}, queues_(in_rounds ? sources : 1), ended_(sources, false)
    {}

    [[nodiscard]] ticket take(std::size_t source)
    {
        queues_[in_rounds_ ? source : 0].push_back(next_ticket_);
        ++waiting_;
        return next_ticket_++;
    }

    // Returns the next ticket. Empty if no frame waits, or none of the source in turn.
    [[nodiscard]] std::optional<ticket> next() const
    {
        auto const& queue = queues_[current_];
        if (queue.empty())
            return std::nullopt;
        return queue.front();
    }

    // Records that the frame of next() is in its batches.
    void placed()
    {
        queues_[current_].pop_front();
        --waiting_;
        if (!in_rounds_)
            return;
        current_ = (current_ + 1) % queues_.size();
        skip_ended();
    }

    // Records that this source sends no more frames. Its tickets keep their turns.
    void end(std::size_t source)
    {
        ended_[source] = true;
        if (in_rounds_)
            skip_ended();
    }

    // Begins another round without the ended sources. It starts with source `first`, or with the next that has not
    // ended. Precondition: no ticket is waiting.
    void begin(std::vector<bool> ended, std::size_t first)
    {
        ended_ = std::move(ended);
        if (!in_rounds_)
            return;
        current_ = first;
        skip_ended();
    }

    // Tickets whose frames are not placed yet.
    [[nodiscard]] std::size_t waiting() const noexcept { return waiting_; }

  private:
    void skip_ended()
    {
        for (std::size_t tried = 0; tried < queues_.size(); ++tried) {
            if (!ended_[current_] || !queues_[current_].empty())
                return;
            current_ = (current_ + 1) % queues_.size();
        }
    }

    bool in_rounds_;
    std::vector<std::deque<ticket>> queues_;  // one for each source, or one for all
    std::vector<bool> ended_;
    std::size_t current_ = 0;
    std::size_t waiting_ = 0;
    ticket next_ticket_ = 0;
};

// SplitMix64, by Steele, Lea and Flood. Each seed gives a different sequence.
class split_mix {
  public:
    explicit split_mix(std::uint64_t seed) noexcept : state_{seed} {}

    std::uint64_t operator()() noexcept
    {
        state_ += 0x9e3779b97f4a7c15;
        auto z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    // Returns a number below `bound`, uniformly distributed. Precondition: bound > 0.
    std::uint64_t below(std::uint64_t bound) noexcept
    {
        auto const unfair = (0 - bound) % bound;  // count of numbers that would make the first results more likely
        for (;;) {
            if (auto const found = (*this)(); found >= unfair)
                return found % bound;
        }
    }

  private:
    std::uint64_t state_;
};

// Returns 0 to count - 1 in a random order, uniformly distributed (Fisher and Yates).
[[nodiscard]] inline std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t seed, std::uint64_t epoch,
                                                       std::uint64_t window)
{
    auto const mixed = split_mix{split_mix{split_mix{seed}() ^ epoch}() ^ window}();
    split_mix random{mixed};
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (auto i = count; i > 1; --i)
        std::swap(order[i - 1], order[random.below(i)]);
    return order;
}

}  // namespace gpurx::ingest::detail
