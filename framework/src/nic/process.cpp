// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/capability.h>
#include <linux/nsfs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <ios>
#include <span>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "uapi.hpp"

namespace gpurx::detail {

namespace {

// The start of a file of /proc: these are short. Empty, with errno set, if it cannot be read.
std::string read_proc(std::string const& path)
{
    unique_fd const file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    std::array<char, 4096> text{};
    ssize_t const size = file ? ::read(file.get(), text.data(), text.size()) : -1;
    return {text.data(), static_cast<std::size_t>(size > 0 ? size : 0)};
}

std::optional<std::uint64_t> pid_namespace()
{
    struct stat info {};
    if (::stat("/proc/self/ns/pid", &info) != 0)
        return std::nullopt;
    return info.st_ino;
}

template <class Number>
std::optional<Number> to_number(std::string_view word)
{
    Number value{};
    auto const* const end = word.data() + word.size();
    auto const [stopped, error] = std::from_chars(word.data(), end, value);
    if (error != std::errc{} || stopped != end)
        return std::nullopt;
    return value;
}

}  // namespace

std::optional<process_stat> parse_process_stat(std::string_view text)
{
    // The second field is the program's name in brackets and may hold anything, also brackets and spaces.
    auto const name_end = text.rfind(") ");
    if (name_end == std::string_view::npos)
        return std::nullopt;
    text.remove_prefix(name_end + 2);

    constexpr unsigned state_field = 3;
    constexpr unsigned threads_field = 20;
    constexpr unsigned start_field = 22;
    process_stat result;
    for (unsigned field = state_field; field <= start_field; ++field) {
        auto const space = text.find(' ');
        if (space == std::string_view::npos)
            return std::nullopt;
        auto const word = text.substr(0, space);
        text.remove_prefix(space + 1);
        if (field == state_field && word.size() == 1) {
            result.state = word.front();
        } else if (field == threads_field) {
            auto const threads = to_number<std::uint32_t>(word);
            if (!threads)
                return std::nullopt;
            result.threads = *threads;
        } else if (field == start_field) {
            auto const start = to_number<std::uint64_t>(word);
            if (!start)
                return std::nullopt;
            result.start_time = *start;
        }
    }
    return result;
}

owner_key this_process(std::uint64_t session)
{
    auto const stat = parse_process_stat(read_proc("/proc/self/stat"));
    auto const space = pid_namespace();
    if (!stat || !space)
        fail(ENOENT, "read", "/proc/self", "mount /proc: gpurx finds sessions that have ended by it");
    return {::getpid(), stat->start_time, *space, session};
}

std::optional<bool> is_alive(owner_key const& owner)
{
    if (pid_namespace() != owner.pid_namespace)
        return std::nullopt;
    auto const stat = parse_process_stat(read_proc(fmt::format("/proc/{}/stat", owner.pid)));
    // The processes of other users may be hidden from us (mount option hidepid): then one has this number, but since
    // when is not known.
    if (!stat && (::kill(owner.pid, 0) == 0 || errno == EPERM))
        return std::nullopt;
    if (!stat)
        return false;
    return stat->start_time == owner.start_time && stat->alive();
}

std::string boot_id()
{
    constexpr char const* path = "/proc/sys/kernel/random/boot_id";
    std::string id = read_proc(path);
    id.erase(id.find_last_not_of('\n') + 1);
    if (id.empty() || id.find(' ') != std::string::npos)
        fail(ENOENT, "read", path, "mount /proc");
    return id;
}

std::uint64_t network_namespace()
{
    unique_fd const any{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    std::uint64_t cookie = 0;
    socklen_t size = sizeof(cookie);
    if (!any || ::getsockopt(any.get(), SOL_SOCKET, uapi::so_netns_cookie, &cookie, &size) != 0)
        fail(errno, "get", "network namespace cookie");
    return cookie;
}

// The kernel shows the owner of a network namespace only to those who are in the user namespace that owns it, or above.
bool may_configure_nics()
{
    std::uint64_t effective = 0;
    std::ifstream status{"/proc/thread-self/status"};
    for (std::string word; status >> word;) {
        if (word == "CapEff:")
            status >> std::hex >> effective;
    }
    if ((effective >> CAP_NET_ADMIN & 1) == 0)
        return false;
    unique_fd const network{::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)};
    unique_fd const owner{network ? ::ioctl(network.get(), NS_GET_USERNS) : -1};
    return owner || (network && errno != EPERM);
}

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
    auto text = fmt::format("interfaces in this network namespace: {}", fmt::join(std::span{names}.first(named), ", "));
    if (named < names.size())
        text += fmt::format(", and {} more", names.size() - named);
    return text;
}

}  // namespace gpurx::detail
