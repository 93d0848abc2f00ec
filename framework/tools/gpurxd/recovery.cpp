// SPDX-License-Identifier: Apache-2.0
#include "recovery.hpp"

#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <variant>

#include <gpurx/session.hpp>

#include "nic/process.hpp"

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

bool names_interface(policy const& known, std::string_view interface)
{
    return std::ranges::any_of(known.lines,
                               [&](auto const& line) { return line.interface == "*" || line.interface == interface; });
}

void recover_interface(std::string const& interface, std::string const& state_directory, bool named)
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

// The journals of this boot and network namespace. One that cannot be read is left to recover_all(), which says why.
std::vector<detail::journal> read_journals(std::string const& directory)
{
    std::vector<detail::journal> all;
    auto const boot = detail::boot_id();
    auto const netns = detail::network_namespace();
    std::error_code nothing_there;
    for (auto const& entry : std::filesystem::directory_iterator{directory, nothing_there}) {
        if (entry.path().extension() != ".journal")
            continue;
        std::ifstream file{entry.path(), std::ios::binary};
        auto read = detail::parse_journal(std::string{std::istreambuf_iterator<char>{file}, {}});
        auto* const one = std::get_if<detail::journal>(&read);
        if (one != nullptr && one->device.boot_id == boot && one->device.netns == netns)
            all.push_back(std::move(*one));
    }
    return all;
}

std::vector<detail::owner_key> dead_owners(detail::journal const& log)
{
    std::vector<detail::owner_key> dead;
    for (auto const& owner : log.owners) {
        if (detail::is_alive(owner.key) == false)
            dead.push_back(owner.key);
    }
    return dead;
}

}  // namespace

void recovery_watch::check() noexcept
{
    try {
        std::vector<detail::owner_key> still_there;
        for (auto const& log : read_journals(paths_.state_directory)) {
            auto const dead = dead_owners(log);
            bool const any_new = std::ranges::any_of(
                dead, [this](auto const& one) { return std::ranges::find(seen_, one) == seen_.end(); });
            still_there.insert(still_there.end(), dead.begin(), dead.end());
            if (any_new && names_interface(read_policy(paths_.policy), log.device.interface))
                recover_interface(log.device.interface, paths_.state_directory, true);
        }
        seen_ = std::move(still_there);
    } catch (std::exception const& error) {
        fmt::print(stderr, "gpurxd undid no change: {}\n", error.what());
    }
}

void recover_all(daemon_paths const& paths) noexcept
{
    try {
        std::set<std::string> named;
        std::set<std::string> others;
        auto const known = read_policy(paths.policy);
        for (auto const& line : known.lines) {
            if (line.interface == "*")
                others = existing_interfaces();
            else
                named.insert(line.interface);
        }
        for (auto const& interface : named)
            recover_interface(interface, paths.state_directory, true);
        for (auto const& interface : others) {
            if (!named.contains(interface))
                recover_interface(interface, paths.state_directory, false);
        }
    } catch (std::exception const& error) {
        fmt::print(stderr, "gpurxd undid no change: {}\n", error.what());
    }
}

}  // namespace gpurx::gpurxd
