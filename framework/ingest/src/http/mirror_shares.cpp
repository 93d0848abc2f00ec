// SPDX-License-Identifier: Apache-2.0
#include "mirror_shares.hpp"

#include <algorithm>

namespace gpurx::ingest::detail {

namespace {

// A mirror is slow if another is so much faster.
constexpr double far_faster = 4;
// Of the last measurement in the mean.
constexpr double weight_of_last = 0.5;

}  // namespace

std::optional<std::size_t> mirror_shares::choose() const
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

bool mirror_shares::has_sound() const
{
    return std::ranges::any_of(all_, [](state const& each) { return each.is_free() && each.failures == 0; });
}

std::size_t mirror_shares::left() const
{
    return static_cast<std::size_t>(std::ranges::count(all_, false, &state::excluded));
}

void mirror_shares::measured(std::size_t mirror, double speed)
{
    auto& mean = all_[mirror].speed;
    mean = mean ? *mean + weight_of_last * (speed - *mean) : speed;
}

bool mirror_shares::is_outrun(std::size_t mirror, double speed) const
{
    for (std::size_t i = 0; i < all_.size(); ++i) {
        auto const& other = all_[i];
        if (i != mirror && other.is_free() && other.failures == 0 && other.speed && *other.speed > speed * far_faster)
            return true;
    }
    return false;
}

}  // namespace gpurx::ingest::detail
