// SPDX-License-Identifier: Apache-2.0
#include "slowness.hpp"

#include <utility>

namespace gpurx::ingest::detail {

void slowness::wait_for(waiting_for what, unsigned looks) noexcept
{
    what_ = what;
    header_limit_ = looks;
    header_looks_ = 0;
    silent_looks_ = 0;
}

slowness::verdict slowness::look(std::uint64_t arrived, bool at_hand) noexcept
{
    auto const came = arrived - std::exchange(arrived_, arrived);
    came_in_body_.reset();
    if (what_ == waiting_for::nothing || at_hand) {
        silent_looks_ = 0;
        return verdict::fine;
    }
    if (what_ == waiting_for::header)
        return ++header_looks_ > header_limit_ ? verdict::header_too_slow : verdict::fine;
    came_in_body_ = came;
    silent_looks_ = came == 0 ? silent_looks_ + 1 : 0;
    if (silent_looks_ > looks_per_timeout)
        return verdict::silent;
    in_body_ += came;
    // Where nothing comes any more it is silence, and told so.
    if (++body_looks_ < looks_per_timeout || came == 0)
        return verdict::fine;
    measured_ = std::exchange(in_body_, 0) * looks_per_timeout / std::exchange(body_looks_, 0);
    return measured_ < least_ ? verdict::body_too_slow : verdict::fine;
}

}  // namespace gpurx::ingest::detail
