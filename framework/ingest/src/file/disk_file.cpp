// SPDX-License-Identifier: Apache-2.0
#include "disk_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <boost/system/errc.hpp>
#include <cerrno>
#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest::detail {

namespace {

// Where the kernel does not say it: what every disk is content with.
constexpr std::uint64_t usual_alignment = 4096;

error_code last_error() noexcept
{
    return {errno, boost::system::system_category()};
}

error_code system_code(boost::system::errc::errc_t value) noexcept
{
    return {static_cast<int>(value), boost::system::system_category()};
}

char const* kind_of(mode_t mode) noexcept
{
    if (S_ISDIR(mode))
        return "a directory";
    if (S_ISFIFO(mode))
        return "a FIFO";
    if (S_ISCHR(mode) || S_ISBLK(mode))
        return "a device";
    return "no file";
}

// False: the file system says that there is none.
bool ask_alignment(int descriptor, read_alignment& needed) noexcept
{
    needed = {.offset = usual_alignment, .memory = usual_alignment};
#ifdef STATX_DIOALIGN
    struct statx found {};
    if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &found) != 0 || (found.stx_mask & STATX_DIOALIGN) == 0)
        return true;
    if (found.stx_dio_offset_align == 0 || found.stx_dio_mem_align == 0)
        return false;
    needed = {.offset = found.stx_dio_offset_align, .memory = found.stx_dio_mem_align};
#endif
    return true;
}

}  // namespace

disk_file::~disk_file()
{
    for (auto const each : {descriptor_, direct_}) {
        if (each >= 0)
            ::close(each);
    }
}

error_code disk_file::open(std::string const& path, std::string& advice)
{
    // Without O_NONBLOCK to open a FIFO would wait for a writer.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat found {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &found) != 0) {
        auto const code = last_error();
        if (code == boost::system::errc::no_such_file_or_directory && !path.starts_with('/'))
            advice = "the path is relative to the working directory; a URL begins with http, https, s3 or hf, then ://";
        return code;
    }
    if (!S_ISREG(found.st_mode)) {
        advice = fmt::format("it is {}; only regular files can be loaded", kind_of(found.st_mode));
        return system_code(S_ISDIR(found.st_mode) ? boost::system::errc::is_a_directory
                                                  : boost::system::errc::invalid_argument);
    }
    facts_ = {.device = found.st_dev,
              .number = found.st_ino,
              .size = static_cast<std::uint64_t>(found.st_size),
              .seconds = found.st_mtim.tv_sec,
              .nanoseconds = found.st_mtim.tv_nsec};
    return {};
}

std::string disk_file::tag() const
{
    return fmt::format("\"{:x}-{:x}-{:x}-{:x}.{:09}\"", facts_.device, facts_.number, facts_.size, facts_.seconds,
                       facts_.nanoseconds);
}

error_code disk_file::check_unchanged() const noexcept
{
    struct stat found {};
    if (::fstat(descriptor_, &found) != 0)
        return last_error();
    facts const now{.device = found.st_dev,
                    .number = found.st_ino,
                    .size = static_cast<std::uint64_t>(found.st_size),
                    .seconds = found.st_mtim.tv_sec,
                    .nanoseconds = found.st_mtim.tv_nsec};
    return now == facts_ ? error_code{} : errc::object_changed;
}

void disk_file::read_directly()
{
    read_alignment needed;
    if (direct_ >= 0 || !ask_alignment(descriptor_, needed))
        return;
    // That very file, whatever its name stands for by now.
    direct_ = ::open(fmt::format("/proc/self/fd/{}", descriptor_).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (direct_ < 0)
        return;
    reads_directly_ = true;
    aligned_ = needed;
}

error_code disk_file::read(std::uint64_t offset, std::span<std::byte> to, std::size_t needed) noexcept
{
    for (std::size_t done = 0; done < needed;) {
        auto const directly = reads_directly_.load();
        auto const from = directly ? direct_ : descriptor_;
        auto const more = ::pread(from, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
        if (more > 0) {
            done += static_cast<std::size_t>(more);
            continue;
        }
        if (more == 0)
            return errc::object_changed;
        auto const code = last_error();
        if (code.value() == EINTR)
            continue;
        // Some file systems take the flag and then refuse to read so, or did not get as far as a whole block.
        if (code.value() == EINVAL && directly) {
            reads_directly_ = false;
            continue;
        }
        return code;
    }
    return {};
}

bool disk_file::read_cached(std::uint64_t offset, std::span<std::byte> to) const noexcept
{
    while (!to.empty()) {
        ::iovec const part{to.data(), to.size()};
        auto const more = ::preadv2(descriptor_, &part, 1, static_cast<off_t>(offset), RWF_NOWAIT);
        if (more <= 0)
            return false;
        offset += static_cast<std::uint64_t>(more);
        to = to.subspan(static_cast<std::size_t>(more));
    }
    return true;
}

}  // namespace gpurx::ingest::detail
