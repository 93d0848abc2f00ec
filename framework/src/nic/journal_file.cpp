// SPDX-License-Identifier: Apache-2.0
#include "journal_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "failure.hpp"

namespace gpurx::detail {

namespace {

constexpr std::size_t largest_file = 16 << 20;
constexpr std::chrono::milliseconds lock_retry{5};
constexpr char const* directory_advice =
    "name a directory of your own in state_directory, with no write permission for others (as mode 0700)";

unique_fd open_directory(std::string const& path)
{
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
        fail(errno, "create state directory", path, "name a directory that you may write to in state_directory");
    unique_fd directory{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    struct stat info {};
    if (!directory || ::fstat(directory.get(), &info) != 0)
        fail(errno, "open state directory", path,
             "run as its owner, or name a directory of your own in state_directory");
    if ((info.st_uid != ::geteuid() && info.st_uid != 0) || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        fail(EPERM, "use state directory", path, directory_advice);
    return directory;
}

unique_fd open_file(unique_fd const& directory, std::string const& name, int flags)
{
    return unique_fd{::openat(directory.get(), name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600)};
}

void write_all(unique_fd const& file, std::string_view text, std::string const& path)
{
    while (!text.empty()) {
        ssize_t const written = ::write(file.get(), text.data(), text.size());
        if (written < 0 && errno != EINTR)
            fail(errno, "write journal", path);
        text.remove_prefix(static_cast<std::size_t>(written > 0 ? written : 0));
    }
}

std::string read_all(unique_fd const& file, std::string const& path)
{
    std::string text(4096, '\0');
    std::size_t size = 0;
    for (;;) {
        if (size == text.size())
            text.resize(2 * size);
        ssize_t const got = ::read(file.get(), text.data() + size, text.size() - size);
        if (got < 0 && errno != EINTR)
            fail(errno, "read journal", path);
        size += static_cast<std::size_t>(got > 0 ? got : 0);
        if (size > largest_file)
            fail(make_error_code(errc::journal_invalid), "read journal", path, "it is longer than 16 MiB");
        if (got == 0)
            break;
    }
    text.resize(size);
    return text;
}

}  // namespace

journal_file::journal_file(std::string const& directory, device_key const& device, std::chrono::milliseconds patience)
    : boot_id_{device.boot_id},
      name_{fmt::format("ifindex{}-netns{}", device.ifindex, device.netns)},
      path_{fmt::format("{}/{}.journal", directory, name_)},
      directory_{open_directory(directory)},
      lock_{[this] { return open_file(directory_, name_ + ".lock", O_RDWR | O_CREAT).release(); }}
{
    std::string const lock_path = fmt::format("{}/{}.lock", directory, name_);
    if (!lock_)
        fail(errno, "open lock", lock_path);
    // flock() cannot be told how long to wait.
    auto const deadline = std::chrono::steady_clock::now() + patience;
    while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            fail(errno, "take lock", lock_path);
        if (std::chrono::steady_clock::now() >= deadline)
            fail(ETIMEDOUT, "take lock", lock_path, "another gpurx session has been changing the interface for long");
        std::this_thread::sleep_for(lock_retry);
    }
}

journal_file::~journal_file()
{
    // Closing is not enough: a child that is just being spawned holds the descriptor, too.
    if (lock_)
        ::flock(lock_.get(), LOCK_UN);
}

std::optional<journal> journal_file::load() const
{
    unique_fd const file = open_file(directory_, name_ + ".journal", O_RDONLY);
    if (!file && errno == ENOENT)
        return std::nullopt;
    if (!file)
        fail(errno, "open journal", path_);
    auto const text = read_all(file, path_);
    if (auto speaks_of = parse_device(text); speaks_of && speaks_of->boot_id != boot_id_)
        return journal{*std::move(speaks_of), {}, {}};
    auto result = parse_journal(text);
    if (auto const* const damage = std::get_if<journal_damage>(&result)) {
        fail(make_error_code(errc::journal_invalid), "read journal", path_,
             fmt::format("line {}: {}; if no gpurx session uses the interface, check its settings and remove the file",
                         damage->line, damage->what));
    }
    return std::get<journal>(std::move(result));
}

void journal_file::store(journal const& value) const
{
    if (!value.empty()) {
        replace(serialise(value));
    } else if (::unlinkat(directory_.get(), (name_ + ".journal").c_str(), 0) != 0 && errno != ENOENT) {
        fail(errno, "remove journal", path_);
    }
}

unique_fd journal_file::open_to_append() const
{
    auto file = open_file(directory_, name_ + ".journal", O_RDWR | O_APPEND);
    if (!file && errno != ENOENT)
        fail(errno, "open journal", path_);
    return file;
}

bool journal_file::is_now(unique_fd const& file, std::uint64_t size) const noexcept
{
    // As long as `file` is open, no other file has its number.
    struct stat ours {};
    struct stat now {};
    return file && ::fstat(file.get(), &ours) == 0 &&
           ::fstatat(directory_.get(), (name_ + ".journal").c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 &&
           ours.st_dev == now.st_dev && ours.st_ino == now.st_ino && static_cast<std::uint64_t>(now.st_size) == size;
}

void journal_file::replace(std::string_view text) const
{
    std::string const fresh = name_ + ".new";
    unique_fd file = open_file(directory_, fresh, O_WRONLY | O_CREAT | O_TRUNC);
    if (!file)
        fail(errno, "write journal", path_);
    write_all(file, text, path_);
    // So that what a loss of power leaves can be read, and told to be of an earlier boot.
    if (::fsync(file.get()) != 0 ||
        ::renameat(directory_.get(), fresh.c_str(), directory_.get(), (name_ + ".journal").c_str()) != 0)
        fail(errno, "write journal", path_);
}

}  // namespace gpurx::detail
