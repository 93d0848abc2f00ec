// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <gpurx/error.hpp>
#include <stdexcept>
#include <utility>

namespace {

// The file system has no files without a name, or the kernel.
bool has_no_nameless(int error) noexcept
{
    return error == EOPNOTSUPP || error == EISDIR || error == EINVAL;
}

// Standard output may be another process's as well, which does not want to wait.
void wait_until_writable(int file) noexcept
{
    pollfd waits{.fd = file, .events = POLLOUT, .revents = 0};
    static_cast<void>(::poll(&waits, 1, -1));
}

}  // namespace

output::output(std::filesystem::path path) : path_{std::move(path)}
{
    struct stat there {};
    if (path_ == "-") {
        file_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    } else if (::stat(path_.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
        file_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    } else {
        is_file_ = true;
        open_file(there.st_mode);
    }
    if (file_ < 0)
        fail("open", errno);
}

output::~output()
{
    if (file_ >= 0)
        ::close(file_);
    if (!temporary_.empty())
        ::unlink(temporary_.c_str());
}

void output::open_file(unsigned old_mode)
{
    // A file that may not be written is not replaced either.
    if (old_mode != 0 && ::faccessat(AT_FDCWD, path_.c_str(), W_OK, AT_EACCESS) != 0)
        fail("open", errno);
    target_ = old_mode != 0 ? std::filesystem::canonical(path_) : path_;
    if (target_.filename().empty())
        fail("create", EISDIR);
    auto const directory = target_.has_parent_path() ? target_.parent_path() : std::filesystem::path{"."};
    // It gets its name through /proc.
    auto const may_be_nameless = ::access("/proc/self/fd", X_OK) == 0;
    if (may_be_nameless)
        file_ = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (!may_be_nameless || (file_ < 0 && has_no_nameless(errno)))
        open_named(directory);
    if (file_ < 0)
        fail("create", errno, "its directory must exist and be writable");
    if (old_mode != 0 && ::fchmod(file_, old_mode & 07777) != 0)
        fail("create", errno);
}

void output::open_named(std::filesystem::path const& directory)
{
    auto name = (directory / ".gpurx-XXXXXX").string();
    file_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (file_ < 0)
        return;
    temporary_ = name;
    auto const mask = ::umask(0);
    ::umask(mask);
    if (::fchmod(file_, 0666 & ~mask) != 0)
        fail("create", errno);
}

void output::reserve(std::uint64_t size)
{
    if (!is_file_ || size == 0)
        return;
    struct statvfs space {};
    // Some file systems do not know.
    if (::fstatvfs(file_, &space) == 0 && space.f_blocks > 0 && space.f_bavail < size / space.f_frsize)
        fail("write", ENOSPC, fmt::format("{} bytes are expected, {} are free", size, space.f_bavail * space.f_frsize));
    struct statfs system {};
    // A file system in memory: reserving now costs as much as writing later, and delays the transfer.
    if (::fstatfs(file_, &system) == 0 && system.f_type == TMPFS_MAGIC)
        return;
    if (::fallocate(file_, 0, 0, static_cast<off_t>(size)) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        fail("write", errno, fmt::format("{} bytes are expected", size));
}

void output::write(std::uint64_t offset, std::span<std::byte const> bytes)
{
    if (!is_file_ && offset != written_)
        throw std::logic_error{"output: only a file takes bytes out of order"};
    for (std::size_t done = 0; done < bytes.size();) {
        auto const rest = bytes.subspan(done);
        auto const count = is_file_ ? ::pwrite(file_, rest.data(), rest.size(), static_cast<off_t>(offset + done))
                                    : ::write(file_, rest.data(), rest.size());
        if (count >= 0)
            done += static_cast<std::size_t>(count);
        else if (errno == EAGAIN)
            wait_until_writable(file_);
        else if (errno != EINTR)
            fail("write", errno);
    }
    if (!is_file_)
        written_ += bytes.size();
}

void output::read(std::uint64_t offset, std::span<std::byte> bytes) const
{
    for (std::size_t done = 0; done < bytes.size();) {
        auto const rest = bytes.subspan(done);
        auto const count = ::pread(file_, rest.data(), rest.size(), static_cast<off_t>(offset + done));
        if (count > 0)
            done += static_cast<std::size_t>(count);
        else if (count == 0 || errno != EINTR)
            fail("read", count == 0 ? EIO : errno);
    }
}

void output::commit()
{
    if (!is_file_)
        return;
    if (::fsync(file_) != 0)
        fail("write", errno);
    if (temporary_.empty())
        give_name();
    if (!temporary_.empty() && ::rename(temporary_.c_str(), target_.c_str()) != 0) {
        if (errno != EBUSY)
            fail("rename", errno);
        overwrite();
    } else {
        temporary_.clear();
    }
}

// A mount point, as a file of a container's volume, cannot be replaced. An error leaves all bytes in the temporary
// file.
void output::overwrite()
{
    auto const kept = std::exchange(temporary_, {});
    auto const advice = [&] { return fmt::format("all bytes are in {}", kept.string()); };
    auto const into = ::open(target_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (into < 0)
        fail("open", errno, advice());
    off_t offset = 0;
    ssize_t count = 0;
    do
        count = ::sendfile(into, file_, &offset, std::size_t{1} << 30);
    while (count > 0 || (count < 0 && errno == EINTR));
    auto const failed = count < 0 || ::fsync(into) != 0 ? errno : 0;
    ::close(into);
    if (failed != 0)
        fail("write", failed, advice());
    temporary_ = kept;  // to be removed
}

// Its own, if that is free; otherwise one for the moment, as a link replaces nothing.
void output::give_name()
{
    auto const nameless = fmt::format("/proc/self/fd/{}", file_);
    auto const link = [&](std::filesystem::path const& name) {
        return ::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW);
    };
    if (link(target_) == 0)
        return;
    for (unsigned number = 0; errno == EEXIST; ++number) {
        auto const name = target_.parent_path() / fmt::format(".gpurx-{}-{}", ::getpid(), number);
        if (link(name) == 0) {
            temporary_ = name;
            return;
        }
    }
    fail("create", errno);
}

void output::fail(char const* operation, int reason, std::string advice) const
{
    throw gpurx::system_error{
        boost::system::error_code{reason, boost::system::system_category()},
        {.operation = operation, .object = path_.string(), .kernel_message = {}, .advice = std::move(advice)}};
}
