// SPDX-License-Identifier: Apache-2.0
//
// The choice of a mirror for a connection: mirrors that fail or are slow lose their share. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace gpurx::ingest::detail {

class mirror_shares {
  public:
    explicit mirror_shares(std::size_t mirrors) : all_(mirrors) {}

    // Returns the mirror for the next connection: of those with the fewest failures in a row, the one with the most
    // speed per connection. A mirror with unknown speed counts as fast. Empty if no mirror is left, or if those left
    // are held.
    [[nodiscard]] std::optional<std::size_t> choose() const
    {
        double best_speed = 0;
        for (auto const& each : all_)
            best_speed = std::max(best_speed, each.speed.value_or(0));
        auto const wait = [best_speed](state const& of) {
            auto const speed = of.speed.value_or(best_speed);
            return static_cast<double>(of.connections + 1) / std::max(speed, 1.0);
        };
        std::optional<std::size_t> found;
        for (std::size_t i = 0; i < all_.size(); ++i) {
            if (!all_[i].is_free())
                continue;
            if (!found || all_[i].failures < all_[*found].failures ||
                (all_[i].failures == all_[*found].failures && wait(all_[i]) < wait(all_[*found])))
                found = i;
        }
        return found;
    }
    // Returns whether a free mirror has had no failure since its last progress.
    [[nodiscard]] bool has_sound() const
    {
        return std::ranges::any_of(all_, [](state const& each) { return each.is_free() && each.failures == 0; });
    }

    void began(std::size_t mirror) { ++all_[mirror].connections; }
    void ended(std::size_t mirror) { --all_[mirror].connections; }
    // An attempt at it failed.
    void failed(std::size_t mirror) { ++all_[mirror].failures; }
    void progressed(std::size_t mirror) { all_[mirror].failures = 0; }
    // Bars it from the choice: temporarily (hold), or permanently (exclude).
    void hold(std::size_t mirror, bool held) { all_[mirror].held = held; }
    void exclude(std::size_t mirror) { all_[mirror].excluded = true; }
    // Returns the number of mirrors that are not excluded.
    [[nodiscard]] std::size_t left() const
    {
        return static_cast<std::size_t>(std::ranges::count(all_, false, &state::excluded));
    }

    // Records the recent speed of one of its connections, in bytes per second.
    void measured(std::size_t mirror, double speed)
    {
        auto& mean = all_[mirror].speed;
        mean = mean ? *mean + weight_of_last * (speed - *mean) : speed;
    }
    // Returns whether a connection with this speed should move to another mirror.
    [[nodiscard]] bool is_outrun(std::size_t mirror, double speed) const
    {
        for (std::size_t i = 0; i < all_.size(); ++i) {
            auto const& other = all_[i];
            if (i != mirror && other.is_free() && other.failures == 0 && other.speed &&
                *other.speed > speed * far_faster)
                return true;
        }
        return false;
    }

  private:
    // A mirror is slow if another is faster by this factor.
    static constexpr double far_faster = 4;
    // Weight of the last measurement in the mean.
    static constexpr double weight_of_last = 0.5;

    struct state {
        std::size_t connections = 0;
        unsigned failures = 0;
        bool held = false;
        bool excluded = false;
        std::optional<double> speed;  // of one connection

        [[nodiscard]] bool is_free() const noexcept { return !held && !excluded; }
    };

    std::vector<state> all_;
};

}  // namespace gpurx::ingest::detail
