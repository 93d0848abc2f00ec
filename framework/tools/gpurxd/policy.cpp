// SPDX-License-Identifier: Apache-2.0
#include "policy.hpp"

#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

namespace gpurx::gpurxd {

namespace {

using words = std::vector<std::string_view>;

words split(std::string_view line)
{
    constexpr std::string_view space = " \t\r";
    words result;
    line = line.substr(0, line.find('#'));
    for (auto begin = line.find_first_not_of(space); begin != std::string_view::npos;
         begin = line.find_first_not_of(space)) {
        line.remove_prefix(begin);
        auto const size = std::min(line.find_first_of(space), line.size());
        result.push_back(line.substr(0, size));
        line.remove_prefix(size);
    }
    return result;
}

template <class Number>
std::optional<Number> parse_number(std::string_view text)
{
    Number value{};
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
        return std::nullopt;
    return value;
}

// "512", "64MiB", "2GiB"
std::optional<std::uint64_t> parse_size(std::string_view text)
{
    constexpr std::array<std::pair<std::string_view, unsigned>, 4> units{
        {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
    unsigned shift = 0;
    for (auto const& [name, power] : units) {
        if (text.ends_with(name)) {
            shift = power;
            text.remove_suffix(name.size());
            break;
        }
    }
    auto const number = parse_number<std::uint64_t>(text);
    if (!number || *number > std::numeric_limits<std::uint64_t>::max() >> shift)
        return std::nullopt;
    return *number << shift;
}

// Empty: it has been taken over.
std::string take_limit(limits& into, std::string_view name, std::string_view value)
{
    if (name == "memory") {
        auto const size = parse_size(value);
        if (!size || *size == 0)
            return fmt::format("'{}' is not a size, such as 64MiB or 8GiB", value);
        into.memory = *size;
        return {};
    }
    constexpr std::array<std::pair<std::string_view, unsigned limits::*>, 5> counts{{{"queues", &limits::queues},
                                                                                     {"flows", &limits::flows},
                                                                                     {"rules", &limits::rules},
                                                                                     {"clients", &limits::clients},
                                                                                     {"opens", &limits::opens}}};
    auto const* const found = std::ranges::find(counts, name, [](auto const& count) { return count.first; });
    if (found == counts.end())
        return fmt::format("'{}' is not a limit: queues, memory, flows, rules, clients, opens", name);
    auto const number = parse_number<unsigned>(value);
    if (!number || *number == 0)
        return fmt::format("'{}' is not a number above 0", value);
    into.*(found->second) = *number;
    return {};
}

std::string take_line(words const& from, policy_line& into)
{
    if (from[0] == "metrics")
        return "a file has the metrics: remove this line, and start gpurxd with --metrics-directory DIR";
    if (from.size() < 5 || from[0] != "allow" || (from[1] != "user" && from[1] != "group") || from[3] != "interface")
        return "write a line like: allow user|group NAME interface NAME [LIMIT VALUE]...";
    bool const everyone = from[2] == "*";
    if (everyone && from[1] == "group")
        return "group * has no meaning: write user *";
    into.kind = everyone ? subject::anyone : from[1] == "user" ? subject::user : subject::group;
    into.name = everyone ? std::string_view{} : from[2];
    into.interface = from[4];
    if (into.interface.size() >= IFNAMSIZ)
        return fmt::format("'{}' is too long for the name of an interface", from[4]);
    if (from.size() % 2 == 0)
        return fmt::format("'{}' has no value", from.back());
    for (std::size_t i = 5; i + 1 < from.size(); i += 2) {
        if (auto objection = take_limit(into.most, from[i], from[i + 1]); !objection.empty())
            return objection;
    }
    return {};
}

bool fits(policy_line const& line, caller const& from)
{
    switch (line.kind) {
        case subject::anyone:
            return true;
        case subject::user:
            return (!from.user.empty() && line.name == from.user) || parse_number<std::uint32_t>(line.name) == from.uid;
        case subject::group: {
            auto const id = parse_number<std::uint32_t>(line.name);
            return std::ranges::find(from.groups, line.name) != from.groups.end() ||
                   (id && std::ranges::find(from.gids, *id) != from.gids.end());
        }
    }
    return false;
}

struct quota {
    std::size_t all;       // that callers of this match, or of a lower one, may have together
    std::size_t one_user;  // which include those of clients that have not said yet what they want
};
constexpr std::array<quota, 3> quotas{{{32, 4}, {384, 64}, {512, 64}}};

}  // namespace

std::variant<policy, std::vector<policy_damage>> parse_policy(std::string_view text)
{
    policy result;
    std::vector<policy_damage> damage;
    for (unsigned number = 1; !text.empty(); ++number) {
        auto const size = std::min(text.find('\n'), text.size());
        auto const line = split(text.substr(0, size));
        text.remove_prefix(std::min(size + 1, text.size()));
        if (line.empty())
            continue;
        policy_line parsed;
        if (auto objection = take_line(line, parsed); !objection.empty())
            damage.push_back({number, std::move(objection)});
        else
            result.lines.push_back(std::move(parsed));
    }
    if (!damage.empty())
        return damage;
    return result;
}

std::optional<limits> find_limits(policy const& known, caller const& from, std::string_view interface)
{
    for (auto const& line : known.lines) {
        if ((line.interface == "*" || line.interface == interface) && fits(line, from))
            return line.most;
    }
    return std::nullopt;
}

rate_limit::clock::duration rate_limit::next(clock::time_point now) noexcept
{
    auto const earliest = now - interval_;
    used_until_ = std::max(used_until_, earliest) + each_;
    return std::max(used_until_ - now, clock::duration::zero());
}

policy_match match_of(policy_ids const& known, caller const& from)
{
    if (known.users.contains(from.uid) ||
        std::ranges::any_of(from.gids, [&](auto gid) { return known.groups.contains(gid); }))
        return policy_match::named;
    return known.anyone ? policy_match::anyone : policy_match::none;
}

bool connection_quota::has_room(policy_match match, uid_t user) const
{
    auto const most = quotas[static_cast<std::size_t>(match)];
    std::size_t no_better = 0;
    std::size_t of_user = 0;
    for (auto const& [process, one] : served_) {
        no_better += one.match <= match ? 1 : 0;
        of_user += one.user == user ? 1 : 0;
    }
    return no_better < most.all && of_user < most.one_user;
}

}  // namespace gpurx::gpurxd
