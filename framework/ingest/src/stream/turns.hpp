// SPDX-License-Identifier: Apache-2.0
//
// Whose frame goes into the batches next. No input or output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace gpurx::ingest::detail {

// A frame that is complete takes a ticket, and is placed when it is that ticket's turn.
class turns {
  public:
    using ticket = std::uint64_t;

    // In rounds: one frame of each source that has not ended, in the order of their numbers; a source whose frame is
    // not there is waited for. Else: in the order in which the tickets were taken.
    turns(std::size_t sources, bool in_rounds)
        : in_rounds_{in_rounds}, queues_(in_rounds ? sources : 1), ended_(sources, false)
    {}

    [[nodiscard]] ticket take(std::size_t source)
    {
        queues_[in_rounds_ ? source : 0].push_back(next_ticket_);
        ++waiting_;
        return next_ticket_++;
    }

    // Empty: nothing is there, or not from the source whose turn it is.
    [[nodiscard]] std::optional<ticket> next() const
    {
        auto const& queue = queues_[current_];
        if (queue.empty())
            return std::nullopt;
        return queue.front();
    }

    // The frame of next() is in its batches.
    void placed()
    {
        queues_[current_].pop_front();
        --waiting_;
        if (!in_rounds_)
            return;
        current_ = (current_ + 1) % queues_.size();
        skip_ended();
    }

    // Nothing more comes from this source; the tickets it has keep their turns.
    void end(std::size_t source)
    {
        ended_[source] = true;
        if (in_rounds_)
            skip_ended();
    }

    // Another round begins, without those that have ended, with this source or the next that has not. Precondition: no
    // ticket is waiting.
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

}  // namespace gpurx::ingest::detail
