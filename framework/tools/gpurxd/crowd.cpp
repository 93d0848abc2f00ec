// SPDX-License-Identifier: Apache-2.0
#include "crowd.hpp"

#include <algorithm>

namespace gpurx::gpurxd {

namespace {

struct places_of {
    std::size_t all;       // that they and those who are known less well may have together
    std::size_t one_user;  // which include those of clients that have not said yet what they want
};
constexpr std::array<places_of, 3> most_places{{{32, 4}, {384, 64}, {512, 64}}};

}  // namespace

standing standing_of(known_ids const& known, caller const& from)
{
    if (known.users.contains(from.uid) ||
        std::ranges::any_of(from.gids, [&](auto gid) { return known.groups.contains(gid); }))
        return standing::named;
    return known.anyone ? standing::anyone : standing::stranger;
}

bool crowd::has_room(standing how, uid_t user) const
{
    auto const most = most_places[static_cast<std::size_t>(how)];
    std::size_t no_better = 0;
    std::size_t of_user = 0;
    for (auto const& [process, one] : served_) {
        no_better += one.how <= how ? 1 : 0;
        of_user += one.user == user ? 1 : 0;
    }
    return no_better < most.all && of_user < most.one_user;
}

}  // namespace gpurx::gpurxd
