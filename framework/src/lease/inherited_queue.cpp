// SPDX-License-Identifier: Apache-2.0
#include "inherited_queue.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "base/failure.hpp"

namespace gpurx::detail {

namespace {

constexpr char object[] = "the queue of gpurx-run";

// Takes the next word, up to a blank or the end.
std::string_view next_word(std::string_view& text)
{
    auto const word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    return word;
}

template <class Number>
bool next_number(std::string_view& text, Number& into)
{
    auto const word = next_word(text);
    auto const* const end = word.data() + word.size();
    auto const read = std::from_chars(word.data(), end, into);
    return read.ec == std::errc{} && read.ptr == end && into >= 0;
}

// Programs that this one starts do not get it.
unshared_fd take(int descriptor)
{
    if (::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0)
        fail(errno, "use", object);
    return unshared_fd{[=] { return descriptor; }};
}

}  // namespace

std::string to_variable(inherited_queue const& queue)
{
    return fmt::format("{} {} {} {} {}", queue.interface, queue.channel, queue.state, queue.inode,
                       fmt::join(queue.rings, " "));
}

std::optional<inherited_queue> parse_variable(std::string_view text)
{
    inherited_queue result;
    result.interface = next_word(text);
    if (result.interface.empty() || !next_number(text, result.channel) || !next_number(text, result.state) ||
        !next_number(text, result.inode))
        return std::nullopt;
    while (!text.empty())
        if (!next_number(text, result.rings.emplace_back()))
            return std::nullopt;
    return result.rings.size() < 2 ? std::nullopt : std::optional{std::move(result)};
}

std::optional<inherited_queue> find_inherited_queue(std::string const& interface)
{
    // A program with more rights than its starter is not told where to send its memory.
    auto const* const value = ::secure_getenv(inherited_queue_variable);
    auto found = value != nullptr ? parse_variable(value) : std::nullopt;
    auto const index = ::if_nametoindex(interface.c_str());
    if (!found || index == 0 || ::if_nametoindex(found->interface.c_str()) != index)
        return std::nullopt;
    return found;
}

claimed_queue claim(inherited_queue const& queue)
{
    static std::atomic_flag claimed;
    if (claimed.test_and_set())
        fail(EBUSY, "use", object, "gpurx-run hands on one queue, to one session: this process has opened it before");
    struct stat status {};
    if (::fstat(queue.state, &status) != 0 || status.st_ino != queue.inode)
        fail(EBADF, "use", object, "its descriptors are closed: have gpurx-run start the program itself, or by exec");
    claimed_queue result;
    result.channel.reset(queue.channel);
    if (::fcntl(queue.channel, F_SETFD, FD_CLOEXEC) != 0)
        fail(errno, "use", object);
    result.state = take(queue.state);
    for (int const ring : queue.rings)
        result.rings.push_back(take(ring));
    return result;
}

std::shared_ptr<zcrx_queue> claimed_queue::adopt()
{
    zcrx_queue::handover of;
    if (::pread(state.get(), &of, sizeof of, 0) != static_cast<ssize_t>(sizeof of) || of.size != sizeof of)
        fail(EPROTO, "use", object, "take gpurx-run and the library of one version");
    return zcrx_queue::adopt(of, std::move(rings));
}

}  // namespace gpurx::detail
