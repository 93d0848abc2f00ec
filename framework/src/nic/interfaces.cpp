// SPDX-License-Identifier: Apache-2.0
#include "interfaces.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>

#include "base/failure.hpp"

namespace gpurx::detail {

namespace {

// A host of containers has hundreds.
constexpr std::size_t most_named = 16;

std::vector<std::string> names_of_interfaces()
{
    std::vector<std::string> names;
    auto* const all = ::if_nameindex();
    for (auto const* one = all; one != nullptr && one->if_name != nullptr; ++one)
        names.emplace_back(one->if_name);
    ::if_freenameindex(all);
    return names;
}

}  // namespace

unsigned index_of_interface(std::string_view name)
{
    std::string const wanted{name};
    auto const index = ::if_nametoindex(wanted.c_str());
    if (index != 0)
        return index;
    auto const error = errno;
    fail(error, "find interface", wanted, advice_on_interfaces(names_of_interfaces()));
}

std::string advice_on_interfaces(std::vector<std::string> const& names)
{
    if (names.empty())
        return {};
    auto const named = std::min(names.size(), most_named);
    auto text =
        fmt::format("there are these in this network namespace: {}", fmt::join(std::span{names}.first(named), ", "));
    if (named < names.size())
        text += fmt::format(", and {} more", names.size() - named);
    return text;
}

}  // namespace gpurx::detail
