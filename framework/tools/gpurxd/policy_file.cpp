// SPDX-License-Identifier: Apache-2.0
#include "policy_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/failure.hpp"
#include "base/syscalls.hpp"

namespace gpurx::gpurxd {

using detail::fail;
using detail::unique_fd;

namespace {

std::string read_all(unique_fd const& file, std::string const& path)
{
    std::string text;
    char part[4096];
    for (;;) {
        auto const size = ::read(file.get(), part, sizeof part);
        if (size < 0)
            fail(errno, "read", path);
        if (size == 0)
            return text;
        text.append(part, static_cast<std::size_t>(size));
    }
}

std::string user_name(uid_t uid)
{
    char space[4096];
    passwd entry{};
    passwd* found = nullptr;
    return ::getpwuid_r(uid, &entry, space, sizeof space, &found) == 0 && found != nullptr ? found->pw_name : "";
}

std::string group_name(gid_t gid)
{
    char space[16384];
    group entry{};
    group* found = nullptr;
    return ::getgrgid_r(gid, &entry, space, sizeof space, &found) == 0 && found != nullptr ? found->gr_name : "";
}

std::optional<std::uint32_t> user_number(std::string const& name)
{
    char space[4096];
    passwd entry{};
    passwd* found = nullptr;
    if (::getpwnam_r(name.c_str(), &entry, space, sizeof space, &found) != 0 || found == nullptr)
        return std::nullopt;
    return found->pw_uid;
}

std::optional<std::uint32_t> group_number(std::string const& name)
{
    std::vector<char> space(1 << 16);
    group entry{};
    group* found = nullptr;
    if (::getgrnam_r(name.c_str(), &entry, space.data(), space.size(), &found) != 0 || found == nullptr)
        return std::nullopt;
    return found->gr_gid;
}

std::optional<std::uint32_t> number_in(std::string_view text)
{
    std::uint32_t value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && end == text.data() + text.size() ? std::optional{value} : std::nullopt;
}

std::vector<gid_t> other_groups(int connection)
{
    std::vector<gid_t> groups(64);
    for (;;) {
        auto size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
        auto const result = ::getsockopt(connection, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size);
        if (result != 0 && errno != ERANGE)
            fail(errno, "get the peer of", "the connection");
        groups.resize(size / sizeof(gid_t));
        if (result == 0)
            return groups;
    }
}

}  // namespace

std::variant<policy, std::vector<policy_damage>> parse_policy_file(std::string const& path)
{
    unique_fd const file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file)
        fail(errno, "read", path, "list in it which user may use which interface (man gpurxd)");
    struct stat what {};
    if (::fstat(file.get(), &what) != 0)
        fail(errno, "read", path);
    if ((what.st_mode & (S_IWGRP | S_IWOTH)) != 0 || (what.st_uid != 0 && what.st_uid != ::geteuid()))
        fail(EACCES, "trust", path, "only root may have the right to write it");
    return parse_policy(read_all(file, path));
}

policy read_policy(std::string const& path)
{
    auto parsed = parse_policy_file(path);
    if (auto const* const damage = std::get_if<std::vector<policy_damage>>(&parsed)) {
        auto const& first = damage->front();
        fail(EINVAL, "read", fmt::format("{} line {}: {}", path, first.line, first.what),
             fmt::format("gpurxd --check --policy {} lists every wrong line", path));
    }
    return std::move(std::get<policy>(parsed));
}

policy_ids resolve_ids(policy const& known)
{
    policy_ids all;
    for (auto const& line : known.lines) {
        auto const number = number_in(line.name);
        if (line.kind == subject::anyone) {
            all.anyone = true;
            continue;
        }
        // A name may look like a number, and a number be nobody's yet: find_limits() takes it for both.
        auto& ids = line.kind == subject::user ? all.users : all.groups;
        if (number)
            ids.insert(*number);
        if (auto const id = line.kind == subject::user ? user_number(line.name) : group_number(line.name))
            ids.insert(*id);
    }
    return all;
}

caller peer_ids(int connection)
{
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        fail(errno, "get the peer of", "the connection");
    caller result{.uid = peer.uid, .user = {}, .gids = other_groups(connection), .groups = {}};
    result.gids.push_back(peer.gid);
    return result;
}

caller peer_caller(int connection)
{
    auto result = peer_ids(connection);
    result.user = user_name(result.uid);
    for (auto const gid : result.gids) {
        if (auto name = group_name(gid); !name.empty())
            result.groups.push_back(std::move(name));
    }
    return result;
}

}  // namespace gpurx::gpurxd
