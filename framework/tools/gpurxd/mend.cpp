// SPDX-License-Identifier: Apache-2.0
#include "mend.hpp"

#include <fmt/format.h>
#include <net/if.h>

#include <cstdio>
#include <exception>
#include <set>
#include <string>

#include <gpurx/session.hpp>

namespace gpurx::gpurxd {

namespace {

std::set<std::string> existing_interfaces()
{
    std::set<std::string> names;
    auto* const all = ::if_nameindex();
    for (auto const* one = all; one != nullptr && one->if_index != 0; ++one)
        names.insert(one->if_name);
    ::if_freenameindex(all);
    return names;
}

void mend_one(std::string const& interface, std::string const& state_directory, bool named)
{
    try {
        for (auto const& sentence : rx_session::recover(interface, state_directory))
            fmt::print(stderr, "put back: {}\n", sentence);
    } catch (system_error const& error) {
        // Of an interface that only "*" stands for nothing is expected: it may not even be able to do this.
        if (named)
            fmt::print(stderr, "{}\n", error.what());
    }
}

}  // namespace

void mend(places const& where) noexcept
{
    try {
        std::set<std::string> named;
        std::set<std::string> others;
        auto const known = read_policy(where.policy);
        for (auto const& line : known.lines) {
            if (line.interface == "*")
                others = existing_interfaces();
            else
                named.insert(line.interface);
        }
        for (auto const& interface : named)
            mend_one(interface, where.state_directory, true);
        for (auto const& interface : others) {
            if (!named.contains(interface))
                mend_one(interface, where.state_directory, false);
        }
    } catch (std::exception const& error) {
        fmt::print(stderr, "nothing was put back: {}\n", error.what());
    }
}

}  // namespace gpurx::gpurxd
